#include "checkpoints/hqq.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/checked.h"
#include "checkpoints/parts.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::Tensor;

namespace {

// Codes are stacked: block i of the rows stands at shift shifts[i] of each element.
struct Packing {
  std::string_view name;
  int width;    // bits of a stored code
  int stacked;  // row blocks in one element
  int element;  // bytes of an element
};
constexpr std::array<Packing, 5> kPackings = {{
    {"8bit_u8", 8, 1, 1},
    {"4bit_u8", 4, 2, 1},
    {"3bit_32", 3, 10, 4},
    {"2bit_u8", 2, 4, 1},
    {"1bit_u8", 1, 8, 1},
}};

struct Hqq {
  std::string name;
  int64_t n = 0, k = 0, group = 0;
  int64_t axis = 1;
  int bits = 4;
  const Packing* packing = nullptr;
  int64_t rows = 0, columns = 0;  // of the reshaped matrix: [N*K/g, g] or, along axis 0, [g, N*K/g]
  Tensor codes, scale, zero;
  int64_t bytes = 0;
};

uint32_t stored_code(const Hqq& w, int64_t row, int64_t column) {
  const Packing& p = *w.packing;
  const int64_t stacked_rows = ceil_div(w.rows, p.stacked);
  const int64_t block = row / stacked_rows;
  const int64_t element = row % stacked_rows * w.columns + column;
  const int shift = p.width * static_cast<int>(p.stacked - 1 - block);
  uint32_t word = 0;
  __builtin_memcpy(&word, w.codes.data.data() + element * p.element, static_cast<size_t>(p.element));
  return (word >> shift) & ((1u << p.width) - 1);
}

Status check_code(const Hqq& w, uint32_t code) {
  if (code < 1u << w.bits) return {};
  return invalid_input("code outside its width",
                       {.where = w.name, .expected = fmt::format("{} bits", w.bits), .found = fmt::format("{}", code)});
}

Result<std::vector<float>> decode(const Hqq& w) {
  TARE_ASSIGN(const std::vector<float> scale, tensor::to_f32(w.scale));
  TARE_ASSIGN(const std::vector<float> zero, tensor::to_f32(w.zero));
  std::vector<float> out(static_cast<size_t>(w.n * w.k));
  for (int64_t row = 0; row < w.rows; ++row) {
    for (int64_t column = 0; column < w.columns; ++column) {
      const uint32_t code = stored_code(w, row, column);
      TARE_TRY(check_code(w, code));
      const auto group = static_cast<size_t>(w.axis == 1 ? row : column);
      const float centred = static_cast<float>(code) - zero[group];
      out[static_cast<size_t>(row * w.columns + column)] = centred * scale[group];
    }
  }
  return out;
}

Result<tensor::QuantizedTensor> build(const Hqq& w) {
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .kind = tensor::CodeKind::kUint, .bits = w.bits};
  const int64_t stride = numerics::packed_bytes(w.k, w.bits);
  std::vector<std::byte> codes(static_cast<size_t>(w.n * stride));
  const int64_t groups = w.k / w.group;
  for (int64_t row = 0; row < w.rows; ++row) {
    std::byte* to = codes.data() + row / groups * stride;
    const int64_t first = row % groups * w.group;
    for (int64_t column = 0; column < w.columns; ++column) {
      const uint32_t code = stored_code(w, row, column);
      TARE_TRY(check_code(w, code));
      numerics::write_code(to, (first + column) * w.bits, w.bits, code);
    }
  }
  f.codes = Buffer::own(std::move(codes));
  TARE_ASSIGN(f.a, Grid::make(grid_type(w.scale.dtype), w.n, w.k, 1, w.group, w.scale.data));
  TARE_ASSIGN(Grid zero, Grid::make(grid_type(w.zero.dtype), w.n, w.k, 1, w.group, w.zero.data));
  f.z = std::move(zero);
  f.origin = {.format = "hqq", .bytes = w.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

// Small facts stand as tensors: numbers and booleans with no axis, text as bytes.
Result<double> take_number(Parts& parts, std::string_view suffix) {
  static constexpr std::initializer_list<DType> kNumbers = {DType::kI32,  DType::kI64, DType::kU8,
                                                            DType::kBool, DType::kF32, DType::kF64};
  TARE_ASSIGN(const Tensor t, parts.take_shaped(suffix, kNumbers, {{}, {1}}));
  if (t.dtype == DType::kU8 || t.dtype == DType::kBool) return static_cast<double>(t.data.data()[0]);
  if (t.dtype == DType::kI32 || t.dtype == DType::kI64) {
    TARE_ASSIGN(const auto values, integers(t, parts.name(suffix)));
    return static_cast<double>(values[0]);
  }
  float value = 0;
  TARE_TRY(tensor::to_f32(t, 0, 1, &value));
  return static_cast<double>(value);
}

Result<std::string> take_text(Parts& parts, std::string_view suffix) {
  TARE_ASSIGN(const tensor::Shape shape, parts.shape(suffix, 1));
  TARE_ASSIGN(const Tensor t, parts.take(suffix, {DType::kU8}, shape));
  return std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size());
}

// What the configuration says of a module: one object for all, or one for each kind of layer.
const json::object* weight_settings(const json::object& quantization, const std::string& module) {
  const json::value* q = json::find(quantization, "quant_config");
  if (!q || !q->is_object()) return nullptr;
  const json::object* home = &q->get_object();
  if (!home->contains("weight_quant_params")) {
    for (const auto& [tag, value] : q->get_object()) {
      if (value.is_object() && names_module(tag, module)) home = &value.get_object();
    }
  }
  const json::value* params = json::find(*home, "weight_quant_params");
  return params && params->is_object() ? &params->get_object() : nullptr;
}

Status read_module(Source& source, const std::string& module, const std::vector<std::string>& skipped,
                   tensor::ModelWeights& out) {
  Parts parts(source, module);
  Hqq w{.name = module + ".weight"};
  for (const std::string& entry : skipped) {
    if (names_module(entry, module))
      return parts.contradiction("W_q", "dense, as skip_modules says", "quantized codes");
  }
  TARE_ASSIGN(const double bits, take_number(parts, "nbits"));
  TARE_ASSIGN(const double group, take_number(parts, "group_size"));
  TARE_ASSIGN(const double axis, take_number(parts, "axis"));
  TARE_ASSIGN(const std::string packing, take_text(parts, "packing"));
  TARE_ASSIGN(const tensor::Shape shape_shape, parts.shape("shape", 1));
  TARE_ASSIGN(const Tensor shape, parts.take("shape", {DType::kI64, DType::kI32}, {2}));
  TARE_ASSIGN(const std::vector<int64_t> extents, integers(shape, parts.name("shape")));
  w.n = extents[0];
  w.k = extents[1];
  w.group = static_cast<int64_t>(group);
  w.axis = static_cast<int64_t>(axis);
  w.bits = static_cast<int>(std::ceil(bits));  // 1.58 bits are three values, stored in two
  for (const Packing& row : kPackings) {
    if (row.name == packing) w.packing = &row;
  }
  if (!w.packing) return unsupported("HQQ packing", {.where = parts.name("packing"), .found = packing});
  if (w.n < 1 || w.k < 1 || w.n > INT32_MAX || w.k > INT32_MAX || w.group < 1 || (w.axis != 0 && w.axis != 1) ||
      w.bits < 1 || w.bits > w.packing->width || w.n * w.k % w.group != 0) {
    return parts.contradiction(
        "shape", "a matrix of whole groups and codes that fit their packing",
        fmt::format("[{}, {}], groups of {}, axis {}, {} bits as {}", w.n, w.k, w.group, w.axis, bits, packing));
  }
  if (const json::object* settings = weight_settings(source.quantization, module)) {
    const auto differs = [&](std::string_view key, double found) -> Result<bool> {
      TARE_ASSIGN(const double declared, json::get_number_or(*settings, key, found, source.quantization_where));
      return std::abs(declared - found) > 1e-6;
    };
    for (const auto& [key, found] :
         {std::pair{"nbits", bits}, std::pair{"group_size", group}, std::pair{"axis", axis}}) {
      TARE_ASSIGN(const bool wrong, differs(key, found));
      if (wrong) {
        return parts.contradiction(key, fmt::format("what {} says", source.quantization_where),
                                   fmt::format("{}", found));
      }
    }
  }
  const int64_t groups = w.n * w.k / w.group;
  w.rows = w.axis == 1 ? groups : w.group;
  w.columns = w.axis == 1 ? w.group : groups;
  for (const std::string_view flag : {"quant_scale", "quant_zero"}) {
    if (!parts.has(flag)) continue;
    TARE_ASSIGN(const double set, take_number(parts, flag));
    if (set != 0) return unsupported("HQQ with quantized scales or zeros", {.where = parts.name(flag)});
  }
  bool as_float = false;
  if (parts.has("view_as_float")) {
    TARE_ASSIGN(const double set, take_number(parts, "view_as_float"));
    as_float = set != 0;
  }
  for (const std::string_view flag :
       {"channel_wise", "optimize", "round_zero", "offload_meta", "encoded_state_dict", "stores_quant_config"}) {
    if (parts.has(flag)) TARE_TRY(take_number(parts, flag));
  }
  for (const std::string_view text : {"unpack_view_dtype", "compute_dtype"}) {
    if (parts.has(text)) TARE_TRY(take_text(parts, text));
  }
  // The codes may be the same bytes under a float type.
  const int64_t code_rows = ceil_div(w.rows, w.packing->stacked);
  if (w.packing->stacked != 10 && w.rows % w.packing->stacked != 0) {
    return parts.contradiction("W_q", fmt::format("rows in {} equal blocks", w.packing->stacked),
                               fmt::format("{}", w.rows));
  }
  TARE_ASSIGN(const DType stored, parts.dtype("W_q"));
  const DType plain = w.packing->element == 4 ? DType::kI32 : DType::kU8;
  const int64_t code_bytes = code_rows * w.columns * w.packing->element;
  if (as_float) {
    TARE_ASSIGN(const tensor::Shape viewed, parts.shape("W_q", 2));
    TARE_ASSIGN(w.codes, parts.take("W_q", kFloats, viewed));
  } else {
    TARE_ASSIGN(w.codes, parts.take("W_q", {plain}, {code_rows, w.columns}));
  }
  if (static_cast<int64_t>(w.codes.data.size()) != code_bytes) {
    return parts.contradiction("W_q", fmt::format("{} bytes", code_bytes),
                               fmt::format("{} {}", dtype_name(stored), tensor::shape_text(w.codes.shape)));
  }
  const tensor::Shape meta = w.axis == 1 ? tensor::Shape{groups, 1} : tensor::Shape{1, groups};
  TARE_ASSIGN(w.scale, parts.take("scale", kFloats, meta));
  TARE_ASSIGN(w.zero, parts.take("zero", kFloats, meta));
  w.bytes = parts.bytes();
  const tensor::Shape matrix{w.n, w.k};
  const int64_t bytes = w.bytes;
  const std::string name = w.name;
  if (w.axis == 0 || w.k % w.group != 0) {
    source.notes.push_back(
        fmt::format("{}: {}; decoded to f32", name, w.axis == 0 ? "groups along axis 0" : "groups that cross rows"));
    return add_decoded(out, name, matrix, bytes, [w = std::move(w)] { return decode(w); });
  }
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = w.bits, .group_size = w.group};
  spec.zero = tensor::ZeroKind::kFloat;
  return add_quantized(out, name, matrix, spec, {}, bytes, [w = std::move(w)] { return build(w); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("hqq") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const std::vector<std::string> skipped,
              string_list(source.quantization, "skip_modules", source.quantization_where));
  const std::vector<std::string> modules = modules_with(source.tensors, "W_q");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "HQQ tensors (W_q)", .found = "none"});
  }
  for (const std::string& module : modules) TARE_TRY(read_module(source, module, skipped, out));
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat hqq_format() {
  return {
      .name = "hqq",
      .config_files = {"quantize_config.json"},
      .min_capability = 80,
      .activation_dtypes = {"float16", "bfloat16"},
      .reads = "8, 6, 5, 4, 3, 2, 1.58 and 1 bit, both axes (axis 0 decoded at load)",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
