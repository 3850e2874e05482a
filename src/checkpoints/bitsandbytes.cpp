#include "checkpoints/bitsandbytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/checked.h"
#include "checkpoints/online.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct BnbConfig {
  bool four_bit = false;
  bool eight_bit = false;
  std::string quant_type = "fp4";
  bool nested = false;
  DType storage = DType::kU8;
  float threshold = 6;
  std::vector<std::string> dense_modules;
  std::string where;
};

Result<BnbConfig> parse_config(const json::object& q, const std::string& where) {
  BnbConfig out{.where = where};
  TARE_ASSIGN(out.four_bit, json::get_bool_or(q, "load_in_4bit", false, where));
  TARE_ASSIGN(out.eight_bit, json::get_bool_or(q, "load_in_8bit", false, where));
  if (out.four_bit == out.eight_bit) {
    return invalid_input("configuration names no width", {.where = where,
                                                          .expected = "one of load_in_4bit and load_in_8bit",
                                                          .found = out.four_bit ? "both" : "neither"});
  }
  TARE_ASSIGN(out.quant_type, json::get_string_or(q, "bnb_4bit_quant_type", "fp4", where));
  TARE_ASSIGN(out.nested, json::get_bool_or(q, "bnb_4bit_use_double_quant", false, where));
  TARE_ASSIGN(const double threshold, json::get_number_or(q, "llm_int8_threshold", 6.0, where));
  out.threshold = static_cast<float>(threshold);
  TARE_ASSIGN(const std::string storage, json::get_string_or(q, "bnb_4bit_quant_storage", "uint8", where));
  if (storage == "float16") {
    out.storage = DType::kF16;
  } else if (storage == "bfloat16") {
    out.storage = DType::kBF16;
  } else if (storage == "float32") {
    out.storage = DType::kF32;
  } else if (storage != "uint8") {
    return unsupported("storage type of 4-bit codes", {.where = where, .found = storage});
  }
  TARE_ASSIGN(out.dense_modules, string_list(q, "llm_int8_skip_modules", where));
  return out;
}

Status check_not_skipped(const BnbConfig& config, const Parts& parts) {
  for (const std::string& entry : config.dense_modules) {
    if (names_module(entry, parts.module())) {
      return parts.contradiction("weight", "dense, as llm_int8_skip_modules says", "a quantized weight");
    }
  }
  return {};
}

// A 4-bit weight: T = N*K elements flattened row by row, in runs of `block` that share a scale.
struct FourBit {
  std::string name;
  int64_t n = 0, k = 0, block = 64;
  int64_t blocks = 0;
  int64_t nested_block = 256;
  float offset = 0;
  Tensor codes, absmax, map;
  std::optional<Tensor> nested_absmax, nested_map;
  int64_t bytes = 0;
};

// Scales of all blocks as f32; of double quantized ones: each product and sum rounded, as the library computes them.
Result<std::vector<float>> block_scales(const FourBit& w) {
  if (!w.nested_absmax) {
    TARE_TRY(check_finite(w.absmax, w.name + ".absmax"));
    return tensor::to_f32(w.absmax);
  }
  TARE_ASSIGN(const std::vector<float> outer, tensor::to_f32(*w.nested_absmax));
  TARE_ASSIGN(const std::vector<float> table, tensor::to_f32(*w.nested_map));
  std::vector<float> out(static_cast<size_t>(w.blocks));
  for (int64_t b = 0; b < w.blocks; ++b) {
    const auto code = static_cast<uint8_t>(w.absmax.data.data()[b]);
    const float product = table[code] * outer[static_cast<size_t>(b / w.nested_block)];
    out[static_cast<size_t>(b)] = product + w.offset;
    if (!std::isfinite(out[static_cast<size_t>(b)])) {
      return make_error(ErrorKind::kNotFinite, "scale is not finite",
                        {.where = fmt::format("{}.absmax[{}]", w.name, b)});
    }
  }
  return out;
}

Result<std::vector<float>> decode_flat(const FourBit& w) {
  TARE_ASSIGN(const std::vector<float> scales, block_scales(w));
  TARE_ASSIGN(const std::vector<float> map, tensor::to_f32(w.map));
  std::vector<float> out(static_cast<size_t>(w.n * w.k));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<uint8_t>(w.codes.data.data()[i / 2]);
    out[i] = map[i % 2 == 0 ? byte >> 4 : byte & 15] * scales[i / static_cast<size_t>(w.block)];
  }
  return out;
}

// How the nested scales lie over rows: whole rows share one, or a row has whole ones; else they cross rows.
struct NestedTile {
  int64_t rows = 0;  // 0: neither
  int64_t columns = 0;
};
NestedTile nested_tile(const FourBit& w) {
  const int64_t per_row = w.k / w.block;
  if (w.nested_block % per_row == 0) return {w.nested_block / per_row, w.k};
  if (per_row % w.nested_block == 0) return {1, w.nested_block * w.block};
  return {};
}

Result<tensor::QuantizedTensor> build(const FourBit& w) {
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .kind = tensor::CodeKind::kLut, .bits = 4};
  // The first of two codes stands in the high nibble.
  std::vector<uint8_t> codes(w.codes.data.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(w.codes.data.data()[i]);
    codes[i] = static_cast<uint8_t>(byte >> 4 | byte << 4);
  }
  f.codes = Buffer::own(std::move(codes));
  TARE_ASSIGN(f.lut, tensor::to_f32(w.map));
  const NestedTile tile = w.nested_absmax ? nested_tile(w) : NestedTile{};
  if (tile.rows > 0) {
    f.rule = tensor::Rule::kNested;
    TARE_ASSIGN(f.a, Grid::make(GridType::kLut256, w.n, w.k, 1, w.block, w.absmax.data));
    TARE_ASSIGN(f.A, Grid::make(GridType::kF32, w.n, w.k, tile.rows, tile.columns, w.nested_absmax->data));
    TARE_ASSIGN(std::vector<float> table, tensor::to_f32(*w.nested_map));
    f.scale_lut = std::make_shared<const std::vector<float>>(std::move(table));
    f.nested_offset = w.offset;
  } else {
    TARE_ASSIGN(std::vector<float> scales, block_scales(w));
    TARE_ASSIGN(f.a, Grid::make(GridType::kF32, w.n, w.k, 1, w.block, Buffer::own(std::move(scales))));
  }
  f.origin = {.format = "bitsandbytes", .bytes = w.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

Result<json::object> quant_state(const Tensor& t, const std::string& name) {
  if (t.dtype != DType::kU8 || t.rank() != 1) {
    return invalid_input("quantization state is no text", {.where = name, .expected = "U8 [length]"});
  }
  const std::string_view text(reinterpret_cast<const char*>(t.data.data()), t.data.size());
  TARE_ASSIGN(json::value parsed, json::parse(text, name, {.max_bytes = 1 << 16, .max_depth = 4}));
  if (!parsed.is_object()) return invalid_input("quantization state is no object", {.where = name});
  return std::move(parsed.get_object());
}

Status read_four_bit(Source& source, const BnbConfig& config, const std::string& module, const std::string& type,
                     tensor::ModelWeights& out) {
  Parts parts(source, module);
  FourBit w{.name = module + ".weight"};
  if (!config.four_bit || type != config.quant_type) {
    return parts.contradiction("weight.quant_state.bitsandbytes__" + type,
                               config.four_bit ? "type " + config.quant_type : "8-bit weights", type);
  }
  TARE_TRY(check_not_skipped(config, parts));
  const std::string state_name = "weight.quant_state.bitsandbytes__" + type;
  TARE_ASSIGN(const Tensor blob, source.tensors.take(parts.name(state_name)));
  TARE_ASSIGN(const json::object state, quant_state(blob, parts.name(state_name)));
  const std::string where = parts.name(state_name);
  TARE_ASSIGN(const std::string state_type, json::get_string(state, "quant_type", where));
  if (state_type != type) return parts.contradiction(state_name, type, state_type);
  TARE_ASSIGN(w.block, json::get_int(state, "blocksize", where));
  const json::value* shape = json::find(state, "shape");
  const bool pair = shape && shape->is_array() && shape->get_array().size() == 2;
  const auto n = pair ? json::as_int(shape->get_array()[0]) : std::nullopt;
  const auto k = pair ? json::as_int(shape->get_array()[1]) : std::nullopt;
  if (!n || !k || *n < 1 || *k < 1 || *n > INT32_MAX || *k > INT32_MAX || w.block < 2 || w.block > 4096 ||
      (w.block & (w.block - 1)) != 0) {
    return invalid_input("bad quantization state", {.where = where,
                                                    .expected = "shape [N, K] and a blocksize 2..4096, a power of two",
                                                    .found = boost::json::serialize(state).substr(0, 160)});
  }
  w.n = *n;
  w.k = *k;
  const int64_t elements = w.n * w.k;
  w.blocks = ceil_div(elements, w.block);
  const int64_t per_element = tensor::dtype_bits(config.storage) / 4;
  TARE_ASSIGN(w.codes, parts.take("weight", {config.storage}, {ceil_div(elements, per_element), 1}));
  TARE_ASSIGN(w.map, parts.take("weight.quant_map", {DType::kF32}, {16}));
  TARE_TRY(check_finite(w.map, parts.name("weight.quant_map")));
  if (state.contains("nested_blocksize") != config.nested) {
    return parts.contradiction(state_name, config.nested ? "double quantized" : "not double quantized", "the other");
  }
  if (config.nested) {
    TARE_ASSIGN(w.nested_block, json::get_int(state, "nested_blocksize", where));
    TARE_ASSIGN(const double offset, json::get_number_or(state, "nested_offset", std::nan(""), where));
    w.offset = static_cast<float>(offset);
    if (w.nested_block < 1 || !std::isfinite(w.offset)) {
      return invalid_input("bad quantization state",
                           {.where = where, .expected = "nested_blocksize and nested_offset"});
    }
    TARE_ASSIGN(w.absmax, parts.take("weight.absmax", {DType::kU8}, {w.blocks}));
    TARE_ASSIGN(w.nested_absmax,
                parts.take("weight.nested_absmax", {DType::kF32}, {ceil_div(w.blocks, w.nested_block)}));
    TARE_ASSIGN(w.nested_map, parts.take("weight.nested_quant_map", {DType::kF32}, {256}));
    TARE_TRY(check_finite(*w.nested_map, parts.name("weight.nested_quant_map")));
    TARE_TRY(check_finite(*w.nested_absmax, parts.name("weight.nested_absmax")));
  } else {
    TARE_ASSIGN(w.absmax, parts.take("weight.absmax", {DType::kF32}, {w.blocks}));
  }
  w.bytes = parts.bytes() + static_cast<int64_t>(blob.data.size());
  const tensor::Shape matrix{w.n, w.k};
  const int64_t bytes = w.bytes;
  const std::string name = w.name;
  if (w.k % w.block != 0) {
    source.notes.push_back(fmt::format("{}: blocks of {} cross its rows of {}; decoded to f32", w.name, w.block, w.k));
    return add_decoded(out, name, matrix, bytes, [w = std::move(w)] { return decode_flat(w); });
  }
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kLut, .bits = 4, .group_size = w.block};
  const NestedTile tile = config.nested ? nested_tile(w) : NestedTile{};
  if (tile.rows > 0) {
    spec.rule = tensor::Rule::kNested;
    spec.has_outer_scale = true;
    spec.outer_group_n = std::min(tile.rows, w.n);
    spec.outer_group_size = std::min(tile.columns, w.k);
  } else if (config.nested) {
    source.notes.push_back(fmt::format("{}: nested scales cross rows; widened to f32, exactly", w.name));
  }
  return add_quantized(out, name, matrix, spec, {}, bytes, [w = std::move(w)] { return build(w); });
}

Status read_eight_bit(Source& source, const BnbConfig& config, const std::string& module, tensor::ModelWeights& out) {
  Parts parts(source, module);
  if (!config.eight_bit) return parts.contradiction("SCB", "4-bit weights", "8-bit weights");
  TARE_TRY(check_not_skipped(config, parts));
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("weight", 2));
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {DType::kI8}, shape));
  TARE_ASSIGN(const Tensor scale, parts.take("SCB", {DType::kF32}, {shape[0]}));
  if (parts.has("weight_format")) {
    TARE_ASSIGN(const Tensor format, parts.take_shaped("weight_format", {DType::kU8}, {{}, {1}}));
    if (format.data.data()[0] != std::byte{0}) {
      return unsupported("LLM.int8 weights in a GPU tile order",
                         {.where = parts.name("weight_format"),
                          .expected = "0 (rows)",
                          .found = fmt::format("{}", static_cast<int>(format.data.data()[0]))});
    }
  }
  const int64_t bytes = parts.bytes();
  // w = (c * SCB) / 127
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kInt, .bits = 8, .group_size = shape[1], .has_outer_scale = true};
  spec.outer_group_n = shape[0];
  spec.outer_group_size = shape[1];
  tensor::ActivationSpec activation{.type = tensor::ActivationType::kS8, .outlier_threshold = config.threshold};
  return add_quantized(
      out, parts.name("weight"), shape, spec, activation, bytes,
      [codes, scale, shape, bytes]() -> Result<tensor::QuantizedTensor> {
        tensor::QuantizedFields f{.n = shape[0], .k = shape[1], .kind = tensor::CodeKind::kInt, .bits = 8};
        f.codes = codes.data;
        TARE_ASSIGN(f.a, Grid::make(GridType::kF32, f.n, f.k, 1, f.k, scale.data));
        TARE_ASSIGN(f.A, Grid::make(GridType::kF32, f.n, f.k, f.n, f.k, Buffer::own(std::vector<float>{127.0f})));
        f.A_divides = true;
        f.code_first = true;
        f.origin = {.format = "bitsandbytes int8", .bytes = bytes};
        return tensor::QuantizedTensor::make(std::move(f));
      });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("bitsandbytes") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const BnbConfig config, parse_config(source.quantization, source.quantization_where));
  size_t count = 0;
  for (const std::string_view type : {"nf4", "fp4"}) {
    for (const std::string& name :
         modules_with(source.tensors, fmt::format("weight.quant_state.bitsandbytes__{}", type))) {
      TARE_TRY(read_four_bit(source, config, name, std::string(type), out));
      ++count;
    }
  }
  for (const std::string& name : modules_with(source.tensors, "SCB")) {
    TARE_TRY(read_eight_bit(source, config, name, out));
    ++count;
  }
  if (count == 0) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = config.where, .expected = "quantized weights", .found = "none"});
  }
  if (config.eight_bit) {
    source.notes.push_back("LLM.int8: which inputs are outliers is decided for each token, not over all tokens");
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat bitsandbytes_format() {
  return {
      .name = "bitsandbytes",
      .aliases = {"bnb"},
      .config_files = {"adapter_config.json"},
      .min_capability = 70,
      .activation_dtypes = {"float32", "float16", "bfloat16"},
      .reads = "NF4 and FP4 with single or double quantized scales, LLM.int8",
      .online = true,
      .detect = detect,
      .read = read,
      .quantize = quantize_nf4,
  };
}

}  // namespace tare::checkpoints
