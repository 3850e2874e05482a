#include "checkpoints/tare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/checked.h"
#include "checkpoints/parts.h"
#include "checkpoints/tare_scheme.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::Tensor;

namespace {

constexpr int64_t kVersion = 1;

DType dtype_of(GridType type) {
  switch (type) {
    case GridType::kS6:
    case GridType::kS8:
      return DType::kI8;
    case GridType::kS16:
      return DType::kI16;
    case GridType::kE4M3:
      return DType::kF8E4M3;
    case GridType::kE8M0:
      return DType::kF8E8M0;
    case GridType::kF16:
      return DType::kF16;
    case GridType::kBF16:
      return DType::kBF16;
    case GridType::kF32:
      return DType::kF32;
    default:
      return DType::kU8;
  }
}

// ---- writing

// Codes in the file's layout: rows start at bit 0 and are padded to whole bytes.
Buffer packed_codes(const QuantizedFields& f, int64_t rows, int64_t codes) {
  const int64_t row_bytes = numerics::packed_bytes(codes, f.bits);
  const bool whole_bytes = codes * f.bits % 8 == 0;
  if (f.code_stride == row_bytes && f.code_bit_offset == 0 && whole_bytes) {
    return f.codes.slice(0, static_cast<size_t>(rows * row_bytes));
  }
  std::vector<std::byte> out(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* in = f.codes.data() + row * f.code_stride;
    for (int64_t i = 0; i < codes; ++i) {
      numerics::write_code(out.data() + row * row_bytes, i * f.bits, f.bits,
                           numerics::read_code(in, f.code_bit_offset + i * f.bits, f.bits));
    }
  }
  return Buffer::own(std::move(out));
}

Result<Tensor> grid_tensor(const Grid& grid, const StoredGrid& stored, int64_t n, int64_t groups) {
  const int64_t rows = ceil_div(n, grid.tile_n);
  if (stored.packed_bits > 0) {
    const int64_t row_bytes = numerics::packed_bytes(groups, stored.packed_bits);
    std::vector<std::byte> out(static_cast<size_t>(rows * row_bytes));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < groups; ++j) {
        numerics::write_code(out.data() + i * row_bytes, j * stored.packed_bits, stored.packed_bits,
                             static_cast<uint32_t>(grid.integer(i * grid.stride + j)));
      }
    }
    return Tensor::make(DType::kU8, {rows, row_bytes}, Buffer::own(std::move(out)));
  }
  const auto element = static_cast<size_t>(tensor::grid_element_bytes(grid.type));
  const size_t row_bytes = static_cast<size_t>(groups) * element;
  Buffer values = grid.values;
  if (grid.stride != groups) {
    std::vector<std::byte> out(static_cast<size_t>(rows) * row_bytes);
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(out.data() + static_cast<size_t>(i) * row_bytes,
                  grid.values.data() + static_cast<size_t>(i * grid.stride) * element, row_bytes);
    }
    values = Buffer::own(std::move(out));
  } else {
    values = values.slice(0, static_cast<size_t>(rows) * row_bytes);
  }
  const tensor::Shape shape = stored.suffix == "s1" ? tensor::Shape{rows} : tensor::Shape{rows, groups};
  return Tensor::make(dtype_of(grid.type), shape, std::move(values));
}

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses&) {
  const std::string& module = matrix.module;
  const QuantizedTensor& weight = *matrix.weight;
  const tensor::ActivationSpec& activation = matrix.activation;
  const QuantizedFields& f = weight.fields();
  TARE_ASSIGN(const TareScheme scheme, tare_scheme_of(weight, activation));
  StoredMatrix out{.scheme = to_json(scheme)};
  const auto add = [&](std::string_view suffix, Result<Tensor> tensor) -> Status {
    if (!tensor.ok()) return std::move(tensor).error();
    out.parts.push_back({module + "." + std::string(suffix), std::move(tensor).value()});
    return {};
  };
  const int64_t rows = f.vq ? f.n / f.vq->out_group : f.n;
  const int64_t codes = f.vq ? f.k / f.vq->in_group * f.vq->count : f.k;
  TARE_TRY(add("qweight",
               Tensor::make(DType::kU8, {rows, numerics::packed_bytes(codes, f.bits)}, packed_codes(f, rows, codes))));
  const auto add_grid = [&](const Grid* grid, const std::optional<StoredGrid>& stored, bool mapped) -> Status {
    if (!grid) return {};
    const int64_t groups = mapped && f.group_of_k ? grid->tiles_k : ceil_div(f.k, grid->tile_k);
    return add(stored->suffix, grid_tensor(*grid, *stored, f.n, groups));
  };
  TARE_TRY(add_grid(f.A ? &*f.A : nullptr, scheme.A, false));
  TARE_TRY(add_grid(f.a ? &*f.a : nullptr, scheme.a, true));
  TARE_TRY(add_grid(std::get_if<Grid>(&f.z), scheme.z, true));
  TARE_TRY(add_grid(f.b ? &*f.b : nullptr, scheme.b, true));
  TARE_TRY(add_grid(f.B ? &*f.B : nullptr, scheme.B, false));
  if (f.group_of_k) {
    const auto begin = f.group_of_k->begin() + f.group_of_k_begin;
    TARE_TRY(
        add("group_of_k", Tensor::make(DType::kI32, {f.k}, Buffer::own(std::vector<int32_t>(begin, begin + f.k)))));
  }
  if (scheme.has_offset) {
    TARE_TRY(add("offset", Tensor::make(DType::kF32, {1}, Buffer::own(std::vector<float>{f.nested_offset}))));
  }
  if (f.vq) {
    TARE_TRY(add(
        "codebooks",
        Tensor::make(DType::kF16, {f.vq->count, int64_t{1} << f.bits, f.vq->out_group, f.vq->in_group}, f.vq->books)));
  }
  if (activation.type != tensor::ActivationType::kNone && !activation.dynamic) {
    TARE_TRY(add("input_scale", Tensor::make(DType::kF32, {1}, Buffer::own(std::vector<float>{activation.scale}))));
    if (!activation.symmetric || activation.zero != 0) {
      TARE_TRY(add("input_zero", Tensor::make(DType::kI32, {1}, Buffer::own(std::vector<int32_t>{activation.zero}))));
    }
  }
  return out;
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>&,
                                   const WriteRequest& request) {
  json::object out{{"quant_method", "tare"}, {"version", kVersion}};
  for (const auto& member : request.settings) out[member.key()] = member.value();
  const tensor::KvSpec& kv = request.weights->kv;
  if (!kv.k_dtype.empty() || !kv.v_dtype.empty()) out["kv"] = {{"k_dtype", kv.k_dtype}, {"v_dtype", kv.v_dtype}};
  json::array schemes;
  std::vector<std::string> texts;
  for (const WrittenModule& module : modules) {
    const std::string text = boost::json::serialize(module.scheme);
    const auto found = static_cast<size_t>(std::find(texts.begin(), texts.end(), text) - texts.begin());
    if (found == texts.size()) {
      texts.push_back(text);
      json::object entry = module.scheme;
      entry["modules"] = json::array();
      schemes.push_back(std::move(entry));
    }
    schemes[found].as_object()["modules"].as_array().emplace_back(module.module);
  }
  out["schemes"] = std::move(schemes);
  // Columns are told where the codes of a row leave bits over.
  json::object shapes;
  for (const WrittenModule& m : modules) {
    if (m.spec.kind == tensor::CodeKind::kVq || m.shape[1] * m.spec.bits % 8 != 0) {
      shapes[m.module] = json::array{m.shape[0], m.shape[1]};
    }
  }
  if (!shapes.empty()) out["shapes"] = std::move(shapes);
  return out;
}

// ---- reading

// Where a grid lies, taken and checked for its shape; the numbers are looked at when the weight is loaded.
struct TakenGrid {
  StoredGrid stored;
  Tensor tensor;
  int64_t groups = 0;
  bool mapped = false;
};

struct TakenModule {
  TareScheme scheme;
  std::string name;
  int64_t n = 0, k = 0;
  Tensor codes;
  std::optional<TakenGrid> a, A, z, b, B;
  std::optional<Tensor> group_of_k;
  std::optional<Tensor> codebooks;
  float offset = 0;
  int64_t bytes = 0;
};

Result<Grid> make_grid(const TakenGrid& taken, int64_t n, int64_t k) {
  const StoredGrid& s = taken.stored;
  const int64_t tile_n = s.tile_n < 0 ? std::max<int64_t>(n, 1) : s.tile_n;
  const int64_t tile_k = s.tile_k < 0 ? std::max<int64_t>(k, 1) : s.tile_k;
  Buffer values = taken.tensor.data;
  if (s.packed_bits > 0) {
    const int64_t rows = ceil_div(n, tile_n);
    const int64_t row_bytes = numerics::packed_bytes(taken.groups, s.packed_bits);
    std::vector<int16_t> wide;
    std::vector<uint8_t> narrow;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < taken.groups; ++j) {
        const uint32_t value = numerics::read_code(values.data() + i * row_bytes, j * s.packed_bits, s.packed_bits);
        if (s.type == GridType::kS16) {
          wide.push_back(static_cast<int16_t>(value));
        } else {
          narrow.push_back(static_cast<uint8_t>(value));
        }
      }
    }
    values = s.type == GridType::kS16 ? Buffer::own(std::move(wide)) : Buffer::own(std::move(narrow));
  }
  return taken.mapped ? Grid::make_mapped(s.type, n, taken.groups, tile_n, tile_k, std::move(values))
                      : Grid::make(s.type, n, k, tile_n, tile_k, std::move(values));
}

Result<QuantizedTensor> build(const TakenModule& m) {
  const TareScheme& s = m.scheme;
  QuantizedFields f{.n = m.n, .k = m.k, .kind = s.kind, .bits = s.bits, .codes = m.codes.data};
  f.code_stride = m.codes.shape[1];
  f.lut = s.lut;
  f.rule = s.rule;
  f.A_divides = s.A_divides;
  f.code_first = s.code_first;
  f.B_is_A = s.B_is_A;
  f.round_inner = s.round_inner;
  f.scale_lut = s.scale_lut;
  f.nested_offset = m.offset;
  const auto grid = [&](const std::optional<TakenGrid>& taken, std::optional<Grid>& into) -> Status {
    if (!taken) return {};
    auto made = make_grid(*taken, m.n, m.k);
    if (!made.ok()) {
      Error error = std::move(made).error();
      error.where = m.name + "." + taken->stored.suffix + (error.where.empty() ? "" : ", " + error.where);
      return error;
    }
    into = std::move(made).value();
    return {};
  };
  TARE_TRY(grid(m.a, f.a));
  TARE_TRY(grid(m.A, f.A));
  TARE_TRY(grid(m.b, f.b));
  TARE_TRY(grid(m.B, f.B));
  std::optional<Grid> zero;
  TARE_TRY(grid(m.z, zero));
  if (zero) f.z = *zero;
  if (s.zero_constant) f.z = *s.zero_constant;
  if (m.codebooks) f.vq = tensor::VectorCodebooks{s.vq[0], s.vq[1], s.vq[2], m.codebooks->data};
  if (m.group_of_k) {
    TARE_ASSIGN(const std::vector<int64_t> wide, integers(*m.group_of_k, m.name + ".group_of_k"));
    f.group_of_k = std::make_shared<std::vector<int32_t>>(wide.begin(), wide.end());
  }
  f.origin = {.format = "tare", .bytes = m.bytes};
  return QuantizedTensor::make(std::move(f));
}

// The spec from headers alone: a tensor of the same form and no numbers behind it would need its grids, so it is put
// together from the scheme.
tensor::QuantSpec spec_of(const TakenModule& m) {
  const TareScheme& s = m.scheme;
  const auto rows = [&](const StoredGrid& g) { return g.tile_n < 0 ? m.n : std::min(g.tile_n, m.n); };
  const auto columns = [&](const StoredGrid& g) { return g.tile_k < 0 ? m.k : std::min(g.tile_k, m.k); };
  tensor::QuantSpec spec{.kind = s.kind, .bits = s.bits, .rule = s.rule};
  const StoredGrid* sizing = s.a ? &*s.a : s.A ? &*s.A : s.b ? &*s.b : nullptr;
  spec.group_n = sizing ? rows(*sizing) : m.n;
  spec.group_size = sizing ? columns(*sizing) : m.k;
  spec.has_inner_scale = s.a.has_value();
  spec.has_outer_scale = s.A.has_value();
  if (s.A) {
    spec.outer_group_n = rows(*s.A);
    spec.outer_group_size = columns(*s.A);
  }
  if (s.zero_constant) {
    spec.zero = tensor::ZeroKind::kConstant;
    spec.zero_constant = *s.zero_constant;
  }
  if (s.z) spec.zero = tensor::is_integer(s.z->type) ? tensor::ZeroKind::kInteger : tensor::ZeroKind::kFloat;
  spec.has_min = s.b.has_value();
  spec.act_order = s.group_of_k;
  spec.round_inner = s.round_inner;
  return spec;
}

Status read_module(Source& source, const TareScheme& scheme, const std::string& name, tensor::ModelWeights& out) {
  Parts parts(source, name);
  TakenModule m{.scheme = scheme, .name = name};
  TARE_ASSIGN(const tensor::Shape code_shape, parts.shape("qweight", 2));
  TARE_ASSIGN(m.codes, parts.take("qweight", {DType::kU8}, code_shape));
  // Codes say K only where they fill their bytes; elsewhere the configuration does.
  const json::value* shapes = json::find(source.quantization, "shapes");
  const json::value* shape = shapes && shapes->is_object() ? json::find(shapes->get_object(), name) : nullptr;
  const auto extent = [&](size_t i) -> std::optional<int64_t> {
    if (!shape || !shape->is_array() || shape->get_array().size() != 2) return std::nullopt;
    const auto value = json::as_int(shape->get_array()[i]);
    return value && *value >= 0 ? value : std::nullopt;
  };
  if (shape) {
    if (!extent(0) || !extent(1))
      return invalid_input("wrong shape", {.where = source.quantization_where, .found = name});
    m.n = *extent(0);
    m.k = *extent(1);
  } else {
    m.n = code_shape[0];
    m.k = code_shape[1] * 8 / std::max(scheme.bits, 1);
  }
  const int64_t rows = scheme.vq[0] > 0 ? m.n / scheme.vq[1] : m.n;
  const int64_t codes = scheme.vq[0] > 0 ? m.k / scheme.vq[2] * scheme.vq[0] : m.k;
  const auto bits = checked_mul(static_cast<uint64_t>(codes), static_cast<uint64_t>(scheme.bits));
  if (!bits || code_shape[0] != rows || code_shape[1] != static_cast<int64_t>((*bits + 7) / 8)) {
    return parts.contradiction("qweight", fmt::format("codes of [{}, {}] at {} bits", m.n, m.k, scheme.bits),
                               tensor::shape_text(code_shape));
  }
  if (scheme.group_of_k) {
    TARE_ASSIGN(m.group_of_k, parts.take("group_of_k", {DType::kI32}, {m.k}));
  }
  const auto take_grid = [&](const std::optional<StoredGrid>& stored, bool mappable,
                             std::optional<TakenGrid>& into) -> Status {
    if (!stored) return {};
    TakenGrid taken{.stored = *stored, .mapped = mappable && scheme.group_of_k};
    const int64_t tile_rows = ceil_div(m.n, stored->tile_n < 0 ? std::max<int64_t>(m.n, 1) : stored->tile_n);
    taken.groups = ceil_div(m.k, stored->tile_k < 0 ? std::max<int64_t>(m.k, 1) : stored->tile_k);
    const bool packed = stored->packed_bits > 0;
    if (taken.mapped) {
      TARE_ASSIGN(const tensor::Shape found, parts.shape(stored->suffix, 2));
      if (packed && found[1] != numerics::packed_bytes(taken.groups, stored->packed_bits)) {
        return parts.contradiction(stored->suffix, fmt::format("zeros of {} groups", taken.groups),
                                   tensor::shape_text(found));
      }
      if (!packed) taken.groups = found[1];
    }
    const int64_t width = packed ? numerics::packed_bytes(taken.groups, stored->packed_bits) : taken.groups;
    const tensor::Shape expected = stored->suffix == "s1" ? tensor::Shape{tile_rows} : tensor::Shape{tile_rows, width};
    TARE_ASSIGN(taken.tensor, parts.take(stored->suffix, {packed ? DType::kU8 : dtype_of(stored->type)}, expected));
    into = std::move(taken);
    return {};
  };
  TARE_TRY(take_grid(scheme.a, true, m.a));
  TARE_TRY(take_grid(scheme.A, false, m.A));
  TARE_TRY(take_grid(scheme.z, true, m.z));
  TARE_TRY(take_grid(scheme.b, true, m.b));
  TARE_TRY(take_grid(scheme.B, false, m.B));
  if (scheme.has_offset) {
    TARE_ASSIGN(m.offset, parts.take_scalar("offset", {DType::kF32}));
  }
  if (scheme.vq[0] > 0) {
    TARE_ASSIGN(m.codebooks, parts.take("codebooks", {DType::kF16},
                                        {scheme.vq[0], int64_t{1} << scheme.bits, scheme.vq[1], scheme.vq[2]}));
  }
  tensor::ActivationSpec activation = scheme.activation;
  if (activation.type != tensor::ActivationType::kNone && !activation.dynamic) {
    TARE_ASSIGN(activation.scale, parts.take_scalar("input_scale", {DType::kF32}));
    if (!activation.symmetric) {
      TARE_ASSIGN(const Tensor zero, parts.take("input_zero", {DType::kI32}, {1}));
      TARE_ASSIGN(const std::vector<int64_t> values, integers(zero, parts.name("input_zero")));
      activation.zero = static_cast<int32_t>(values[0]);
    }
  }
  m.bytes = parts.bytes();
  const tensor::QuantSpec spec = spec_of(m);
  return add_quantized(out, name + ".weight", {m.n, m.k}, spec, activation, m.bytes,
                       [m]() -> Result<QuantizedTensor> { return build(m); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && method->is_string() && method->get_string() == "tare" ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  const json::object& config = source.quantization;
  const std::string& where = source.quantization_where;
  TARE_ASSIGN(const int64_t version, json::get_int(config, "version", where));
  if (version != kVersion) {
    return unsupported("file of another version of tare",
                       {.where = where, .expected = fmt::format("{}", kVersion), .found = fmt::format("{}", version)});
  }
  if (const json::value* kv = json::find(config, "kv")) {
    if (!kv->is_object()) return invalid_input("kv is not an object", {.where = where});
    TARE_ASSIGN(out.kv.k_dtype, json::get_string_or(kv->get_object(), "k_dtype", "", where));
    TARE_ASSIGN(out.kv.v_dtype, json::get_string_or(kv->get_object(), "v_dtype", "", where));
  }
  const json::value* schemes = json::find(config, "schemes");
  if (!schemes || !schemes->is_array()) return invalid_input("schemes are missing", {.where = where});
  std::set<std::string> seen;
  int64_t index = 0;
  for (const json::value& entry : schemes->get_array()) {
    const std::string here = fmt::format("{}.schemes[{}]", where, index++);
    if (!entry.is_object()) return invalid_input("scheme is not an object", {.where = here});
    TARE_ASSIGN(const TareScheme scheme, parse_tare_scheme(entry.get_object(), here));
    const json::value* modules = json::find(entry.get_object(), "modules");
    if (!modules || !modules->is_array()) return invalid_input("modules are missing", {.where = here});
    for (const json::value& module : modules->get_array()) {
      if (!module.is_string()) return invalid_input("module is not a name", {.where = here});
      const std::string name(module.get_string());
      if (!seen.insert(name).second) return invalid_input("module has two schemes", {.where = here, .found = name});
      TARE_TRY(read_module(source, scheme, name, out));
    }
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat tare_format() {
  return {
      .name = "tare",
      .min_capability = -1,
      .activation_dtypes = {"float32"},
      .reads = "everything that tare writes: any grid, progressive groups, per-token activations",
      .detect = detect,
      .read = read,
  };
}

CheckpointWriter tare_writer() {
  return {.name = "tare",
          .writes = "any quantized tensor, bit for bit",
          .holds_kv = true,
          .mixed = {.held = true, .bits = {2, 3, 4, 5, 6, 7, 8}},
          .store = store,
          .configuration = configuration};
}

}  // namespace tare::checkpoints
