#include "tensor/quantized_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"
#include "numerics/rounding.h"

namespace tare::tensor {

namespace {

using namespace numerics;

int64_t codes_per_row(const QuantizedFields& f) {
  return f.kind == CodeKind::kVq ? f.k / f.vq->in_group * f.vq->count : f.k;
}
int64_t code_rows(const QuantizedFields& f) {
  return f.kind == CodeKind::kVq ? f.n / f.vq->out_group : f.n;
}

Error field_error(const char* field, std::string expected, std::string found) {
  return invalid_input(fmt::format("quantized tensor: bad {}", field),
                       {.expected = std::move(expected), .found = std::move(found)});
}

// Last tile that rows [0, n) and columns [0, k) of a tensor reach must exist in the grid.
Status check_grid(const char* name, const Grid& grid, int64_t n, int64_t k, bool mapped, int64_t groups_needed) {
  const int64_t rows = n == 0 ? 0 : (n - 1 + grid.origin_n) / grid.tile_n + 1;
  const int64_t columns = mapped ? groups_needed : (k == 0 ? 0 : (k - 1 + grid.origin_k) / grid.tile_k + 1);
  if (rows > grid.tiles_n || columns > grid.tiles_k) {
    return field_error(name, fmt::format("at least {} x {} tiles", rows, columns),
                       fmt::format("{} x {}", grid.tiles_n, grid.tiles_k));
  }
  return {};
}

void decode_row_codes(const QuantizedFields& f, const std::vector<float>& values, int64_t n, float* out) {
  const std::byte* row = f.codes.data() + n * f.code_stride;
  for (int64_t k = 0; k < f.k; ++k) out[k] = values[read_code(row, f.code_bit_offset + k * f.bits, f.bits)];
}

void decode_row_vq(const QuantizedFields& f, int64_t n, float* out) {
  const VectorCodebooks& vq = *f.vq;
  const std::byte* row = f.codes.data() + n / vq.out_group * f.code_stride;
  const auto* books = reinterpret_cast<const uint16_t*>(vq.books.data());
  for (int64_t k = 0; k < f.k; ++k) {
    const int64_t base = k / vq.in_group * vq.count;
    float sum = 0;
    for (int64_t c = 0; c < vq.count; ++c) {
      const int64_t code = read_code(row, f.code_bit_offset + (base + c) * f.bits, f.bits);
      const int64_t vector = (c << f.bits) + code;
      sum += f16_to_f32(books[(vector * vq.out_group + n % vq.out_group) * vq.in_group + k % vq.in_group]);
    }
    out[k] = sum;
  }
}

// Words with all exponent bits set: NaN or inf. The loop has no exit, so that it becomes vector code.
template <class Word>
bool any_exponent_full(const std::byte* data, int64_t count, Word mask) {
  Word bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    __builtin_memcpy(&word, data + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    bad |= static_cast<Word>((word & mask) == mask);
  }
  return bad != 0;
}

// Bytes for which `bad` holds anywhere.
template <class Bad>
bool any_byte(const std::byte* data, int64_t count, Bad bad) {
  bool found = false;
  for (int64_t i = 0; i < count; ++i) found |= bad(static_cast<uint8_t>(data[i]));
  return found;
}

// Whether every number of a grid is finite and inside its width; millions of them at a load.
bool all_in_range(const Grid& grid, int64_t count) {
  const std::byte* data = grid.values.data();
  switch (grid.type) {
    case GridType::kF32:
      return !any_exponent_full<uint32_t>(data, count, 0x7f800000u);
    case GridType::kF16:
      return !any_exponent_full<uint16_t>(data, count, 0x7c00u);
    case GridType::kBF16:
      return !any_exponent_full<uint16_t>(data, count, 0x7f80u);
    case GridType::kE4M3:
      return !any_byte(data, count, [](uint8_t v) { return (v & 0x7f) == 0x7f; });
    case GridType::kE8M0:
      return !any_byte(data, count, [](uint8_t v) { return v == 0xff; });
    case GridType::kU4:
      return !any_byte(data, count, [](uint8_t v) { return v > 15; });
    case GridType::kU6:
      return !any_byte(data, count, [](uint8_t v) { return v > 63; });
    case GridType::kS6:
      return !any_byte(data, count, [](uint8_t v) { return static_cast<uint8_t>(v + 32) > 63; });
    default:
      return true;
  }
}

Result<Grid> make_grid(GridType type, int64_t tiles_n, int64_t tiles_k, int64_t tile_n, int64_t tile_k, Buffer values) {
  const auto count = checked_mul(static_cast<uint64_t>(tiles_n), static_cast<uint64_t>(tiles_k));
  const auto bytes = count ? checked_mul(*count, static_cast<uint64_t>(grid_element_bytes(type))) : std::nullopt;
  if (!bytes || *bytes != values.size()) {
    return field_error("grid", fmt::format("{} x {} of {}", tiles_n, tiles_k, grid_type_name(type)),
                       fmt::format("{} bytes", values.size()));
  }
  Grid grid{.type = type,
            .tile_n = tile_n,
            .tile_k = tile_k,
            .tiles_n = tiles_n,
            .tiles_k = tiles_k,
            .stride = tiles_k,
            .values = std::move(values)};
  if (all_in_range(grid, static_cast<int64_t>(*count))) return grid;
  const auto total = static_cast<int64_t>(*count);
  for (int64_t i = 0; i < total; ++i) {
    const float value = grid.value(i);
    const bool in_range = type == GridType::kU4   ? value <= 15
                          : type == GridType::kU6 ? value <= 63
                          : type == GridType::kS6 ? value >= -32 && value <= 31
                                                  : std::isfinite(value);
    if (!in_range) {
      return make_error(
          ErrorKind::kNotFinite, "quantized tensor: bad number in a grid of scales",
          {.where = fmt::format("tile ({}, {})", i / std::max<int64_t>(tiles_k, 1), i % std::max<int64_t>(tiles_k, 1)),
           .expected = fmt::format("a finite {}", grid_type_name(type)),
           .found = fmt::format("{}", value)});
    }
  }
  return grid;
}

// Moves the start of a grid to row n (and column k) of the matrix it covers.
void shift_rows(Grid& grid, int64_t begin) {
  const int64_t row = (begin + grid.origin_n) / grid.tile_n;
  grid.origin_n = (begin + grid.origin_n) % grid.tile_n;
  const auto offset = static_cast<size_t>(row * grid.stride * grid_element_bytes(grid.type));
  grid.values = grid.values.slice(offset, grid.values.size() - offset);
  grid.tiles_n -= row;
}

Status shift_columns(const char* name, Grid& grid, int64_t begin, int64_t end, int64_t k) {
  const bool whole_row = grid.tile_k >= k + grid.origin_k;
  if (whole_row) {
    grid.origin_k = 0;
    return {};
  }
  if ((begin + grid.origin_k) % grid.tile_k != 0 || (end != k && (end + grid.origin_k) % grid.tile_k != 0)) {
    return invalid_input("cannot cut a quantized tensor inside a group",
                         {.where = name,
                          .expected = fmt::format("a multiple of {}", grid.tile_k),
                          .found = fmt::format("[{}, {})", begin, end)});
  }
  const int64_t column = (begin + grid.origin_k) / grid.tile_k;
  grid.origin_k = 0;
  const auto offset = static_cast<size_t>(column * grid_element_bytes(grid.type));
  grid.values = grid.values.slice(offset, grid.values.size() - offset);
  grid.tiles_k -= column;
  return {};
}

template <class F>
void for_each_grid(QuantizedFields& f, F&& visit) {
  if (f.a) visit("a", *f.a, true);
  if (f.A) visit("A", *f.A, false);
  if (Grid* z = std::get_if<Grid>(&f.z)) visit("z", *z, true);
  if (f.b) visit("b", *f.b, true);
  if (f.B) visit("B", *f.B, false);
}

}  // namespace

bool is_integer(GridType type) {
  switch (type) {
    case GridType::kU4:
    case GridType::kU6:
    case GridType::kS6:
    case GridType::kU8:
    case GridType::kS8:
    case GridType::kS16:
    case GridType::kLut256:
      return true;
    default:
      return false;
  }
}

int grid_element_bytes(GridType type) {
  switch (type) {
    case GridType::kF32:
      return 4;
    case GridType::kF16:
    case GridType::kBF16:
    case GridType::kS16:
      return 2;
    default:
      return 1;
  }
}

std::string_view grid_type_name(GridType type) {
  switch (type) {
    case GridType::kU4:
      return "u4";
    case GridType::kU6:
      return "u6";
    case GridType::kS6:
      return "s6";
    case GridType::kU8:
      return "u8";
    case GridType::kS8:
      return "s8";
    case GridType::kS16:
      return "s16";
    case GridType::kE4M3:
      return "e4m3";
    case GridType::kE8M0:
      return "e8m0";
    case GridType::kLut256:
      return "lut256";
    case GridType::kF16:
      return "f16";
    case GridType::kBF16:
      return "bf16";
    case GridType::kF32:
      return "f32";
  }
  return "?";
}

Result<Grid> Grid::make(GridType type, int64_t n, int64_t k, int64_t tile_n, int64_t tile_k, Buffer values) {
  if (n < 0 || k < 0 || tile_n <= 0 || tile_k <= 0) {
    return field_error("grid tile", "positive extents", fmt::format("[{}, {}]", tile_n, tile_k));
  }
  return make_grid(type, ceil_div(n, tile_n), ceil_div(k, tile_k), tile_n, tile_k, std::move(values));
}

Result<Grid> Grid::make_mapped(GridType type, int64_t n, int64_t groups, int64_t tile_n, int64_t tile_k,
                               Buffer values) {
  if (n < 0 || groups < 0 || tile_n <= 0 || tile_k <= 0) {
    return field_error("grid tile", "positive extents", fmt::format("[{}, {}]", tile_n, tile_k));
  }
  return make_grid(type, ceil_div(n, tile_n), groups, tile_n, tile_k, std::move(values));
}

int32_t Grid::integer(int64_t index) const {
  assert(is_integer(type));
  switch (type) {
    case GridType::kS6:
    case GridType::kS8:
      return reinterpret_cast<const int8_t*>(values.data())[index];
    case GridType::kS16: {
      int16_t value;
      __builtin_memcpy(&value, values.data() + index * 2, 2);
      return value;
    }
    default:
      return reinterpret_cast<const uint8_t*>(values.data())[index];
  }
}

float Grid::value(int64_t index) const {
  const std::byte* data = values.data();
  uint16_t half;
  switch (type) {
    case GridType::kF32: {
      float value;
      __builtin_memcpy(&value, data + index * 4, 4);
      return value;
    }
    case GridType::kF16:
      __builtin_memcpy(&half, data + index * 2, 2);
      return f16_to_f32(half);
    case GridType::kBF16:
      __builtin_memcpy(&half, data + index * 2, 2);
      return bf16_to_f32(half);
    case GridType::kE4M3:
      return E4M3::decode(static_cast<uint32_t>(data[index]));
    case GridType::kE8M0:
      return e8m0_to_f32(static_cast<uint8_t>(data[index]));
    default:
      return static_cast<float>(integer(index));
  }
}

Result<QuantizedTensor> QuantizedTensor::make(QuantizedFields f) {
  if (f.n < 0 || f.k < 0) return field_error("shape", "not negative", fmt::format("[{}, {}]", f.n, f.k));
  const int max_bits = f.kind == CodeKind::kVq ? 16 : 8;
  if (f.bits < 1 || f.bits > max_bits)
    return field_error("bits", fmt::format("1..{}", max_bits), fmt::format("{}", f.bits));
  const bool eight = f.kind == CodeKind::kE4M3 || f.kind == CodeKind::kE5M2;
  if ((eight && f.bits != 8) || (f.kind == CodeKind::kE2M1 && f.bits != 4)) {
    return field_error("bits", eight ? "8" : "4", fmt::format("{}", f.bits));
  }
  if (f.kind == CodeKind::kLut && f.lut.size() != size_t{1} << f.bits) {
    return field_error("lut", fmt::format("{} values", 1 << f.bits), fmt::format("{}", f.lut.size()));
  }
  if (!std::all_of(f.lut.begin(), f.lut.end(), [](float v) { return std::isfinite(v); })) {
    return make_error(ErrorKind::kNotFinite, "quantized tensor: lut holds NaN or inf");
  }
  if (f.kind == CodeKind::kVq) {
    if (!f.vq || f.vq->count < 1 || f.vq->out_group < 1 || f.vq->in_group < 1 || f.n % f.vq->out_group != 0 ||
        f.k % f.vq->in_group != 0) {
      return field_error("codebooks", "groups that divide the shape", fmt::format("[{}, {}]", f.n, f.k));
    }
    const int64_t values = (f.vq->count << f.bits) * f.vq->out_group * f.vq->in_group;
    if (f.vq->books.size() != static_cast<size_t>(values) * 2) {
      return field_error("codebooks", fmt::format("{} bytes", values * 2), fmt::format("{}", f.vq->books.size()));
    }
  }
  const int64_t row_bytes = packed_bytes(f.code_bit_offset + codes_per_row(f) * f.bits, 1);
  if (f.code_stride == 0) f.code_stride = row_bytes;
  const int64_t rows = code_rows(f);
  const auto last =
      checked_mul(static_cast<uint64_t>(std::max<int64_t>(rows - 1, 0)), static_cast<uint64_t>(f.code_stride));
  if (f.code_stride < row_bytes || !last || (rows > 0 && *last + static_cast<uint64_t>(row_bytes) > f.codes.size())) {
    return field_error("codes", fmt::format("{} rows of {} bytes", rows, row_bytes),
                       fmt::format("{} bytes", f.codes.size()));
  }
  int64_t groups = 0;
  if (f.group_of_k) {
    if (f.group_of_k_begin < 0 || f.group_of_k_begin + f.k > static_cast<int64_t>(f.group_of_k->size())) {
      return field_error("group_of_k", fmt::format("{} entries", f.k), fmt::format("{}", f.group_of_k->size()));
    }
    for (int64_t k = 0; k < f.k; ++k) {
      const int32_t group = (*f.group_of_k)[static_cast<size_t>(f.group_of_k_begin + k)];
      if (group < 0) return field_error("group_of_k", "no negative group", fmt::format("{} at {}", group, k));
      groups = std::max<int64_t>(groups, group + 1);
    }
  }
  Status grids;
  for_each_grid(f, [&](const char* name, Grid& grid, bool mapped) {
    if (grids.ok()) grids = check_grid(name, grid, f.n, f.k, mapped && f.group_of_k, groups);
  });
  TARE_TRY(std::move(grids));
  if (const float* z = std::get_if<float>(&f.z); z && !std::isfinite(*z)) {
    return make_error(ErrorKind::kNotFinite, "quantized tensor: zero point is not finite");
  }
  switch (f.rule) {
    case Rule::kScaleFirst:
      break;
    case Rule::kIntegerFirst:
      if ((f.kind != CodeKind::kUint && f.kind != CodeKind::kInt) || (f.b && !is_integer(f.b->type)) ||
          (f.a && is_integer(f.a->type) == f.round_inner)) {
        return field_error("integer_first fields", "integer codes, scales and minima", "floating point");
      }
      break;
    case Rule::kNested:
      if (!f.a || f.a->type != GridType::kLut256 || !f.A || !f.scale_lut || f.scale_lut->size() != 256) {
        return field_error("nested fields", "a lut256 grid, its table of 256 and an outer grid", "something else");
      }
      break;
  }
  return QuantizedTensor(std::move(f));
}

uint32_t QuantizedTensor::code(int64_t n, int64_t k) const {
  return read_code(fields_.codes.data() + n * fields_.code_stride, fields_.code_bit_offset + k * fields_.bits,
                   fields_.bits);
}

int64_t QuantizedTensor::group(const Grid& grid, int64_t k) const {
  return fields_.group_of_k ? (*fields_.group_of_k)[static_cast<size_t>(fields_.group_of_k_begin + k)]
                            : grid.column_index(k);
}

QuantSpec QuantizedTensor::spec() const {
  const QuantizedFields& f = fields_;
  QuantSpec spec{.kind = f.kind, .bits = f.bits, .rule = f.rule};
  const Grid* sizing = f.a ? &*f.a : f.A ? &*f.A : f.b ? &*f.b : nullptr;
  spec.group_n = sizing ? std::min(sizing->tile_n, f.n) : f.n;
  spec.group_size = sizing ? std::min(sizing->tile_k, f.k) : f.k;
  spec.has_inner_scale = f.a.has_value();
  spec.has_outer_scale = f.A.has_value();
  if (f.A) {
    spec.outer_group_n = std::min(f.A->tile_n, f.n);
    spec.outer_group_size = std::min(f.A->tile_k, f.k);
  }
  if (const float* constant = std::get_if<float>(&f.z)) {
    spec.zero = ZeroKind::kConstant;
    spec.zero_constant = *constant;
  } else if (const Grid* z = std::get_if<Grid>(&f.z)) {
    spec.zero = is_integer(z->type) ? ZeroKind::kInteger : ZeroKind::kFloat;
  }
  spec.has_min = f.b.has_value();
  spec.act_order = f.group_of_k != nullptr;
  spec.round_inner = f.round_inner;
  return spec;
}

double QuantizedTensor::bits_per_weight() const {
  const double weights = static_cast<double>(fields_.n) * static_cast<double>(fields_.k);
  return weights == 0 ? 0 : 8.0 * static_cast<double>(fields_.origin.bytes) / weights;
}

Result<QuantizedTensor> QuantizedTensor::rows(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > fields_.n) {
    return invalid_input("row range outside the tensor",
                         {.found = fmt::format("[{}, {}) of {}", begin, end, fields_.n)});
  }
  QuantizedFields f = fields_;
  int64_t code_row = begin;
  if (f.kind == CodeKind::kVq) {
    if (begin % f.vq->out_group != 0 || end % f.vq->out_group != 0) {
      return invalid_input("cannot cut a vector-quantized tensor inside a group of rows",
                           {.expected = fmt::format("a multiple of {}", f.vq->out_group)});
    }
    code_row = begin / f.vq->out_group;
  }
  const auto offset = static_cast<size_t>(code_row * f.code_stride);
  f.codes = f.codes.slice(offset, f.codes.size() - offset);
  f.n = end - begin;
  if (begin > 0) for_each_grid(f, [&](const char*, Grid& grid, bool) { shift_rows(grid, begin); });
  f.origin.bytes = fields_.n == 0 ? 0 : fields_.origin.bytes * f.n / fields_.n;
  return make(std::move(f));
}

Result<QuantizedTensor> QuantizedTensor::cols(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > fields_.k) {
    return invalid_input("column range outside the tensor",
                         {.found = fmt::format("[{}, {}) of {}", begin, end, fields_.k)});
  }
  QuantizedFields f = fields_;
  Status cut;
  for_each_grid(f, [&](const char* name, Grid& grid, bool mapped) {
    if (!cut.ok() || (mapped && f.group_of_k)) return;
    cut = shift_columns(name, grid, begin, end, fields_.k);
  });
  TARE_TRY(std::move(cut));
  int64_t first_code = begin;
  if (f.kind == CodeKind::kVq) {
    if (begin % f.vq->in_group != 0 || end % f.vq->in_group != 0) {
      return invalid_input("cannot cut a vector-quantized tensor inside a group of columns",
                           {.expected = fmt::format("a multiple of {}", f.vq->in_group)});
    }
    first_code = begin / f.vq->in_group * f.vq->count;
  }
  f.code_bit_offset += first_code * f.bits;
  f.group_of_k_begin += f.group_of_k ? begin : 0;
  f.k = end - begin;
  f.origin.bytes = fields_.k == 0 ? 0 : fields_.origin.bytes * f.k / fields_.k;
  return make(std::move(f));
}

std::vector<float> code_values(const QuantizedFields& f) {
  if (f.kind == CodeKind::kLut) return f.lut;
  std::vector<float> values(size_t{1} << f.bits);
  for (uint32_t code = 0; code < values.size(); ++code) {
    switch (f.kind) {
      case CodeKind::kInt:
        values[code] = static_cast<float>(sign_extend(code, f.bits));
        break;
      case CodeKind::kE4M3:
        values[code] = E4M3::decode(code);
        break;
      case CodeKind::kE5M2:
        values[code] = E5M2::decode(code);
        break;
      case CodeKind::kE2M1:
        values[code] = E2M1::decode(code);
        break;
      default:
        values[code] = static_cast<float>(code);
        break;
    }
  }
  return values;
}

void dequantize(const QuantizedTensor& source, int64_t begin, int64_t end, float* out) {
  const QuantizedFields& f = source.fields();
  const std::vector<float> values = f.kind == CodeKind::kVq ? std::vector<float>{} : code_values(f);
  const float* constant_zero = std::get_if<float>(&f.z);
  const Grid* zero_grid = std::get_if<Grid>(&f.z);
  const auto at = [&](const Grid& grid, int64_t n, int64_t k) { return grid.row_index(n) + source.group(grid, k); };
  const auto outer_at = [](const Grid& grid, int64_t n, int64_t k) { return grid.row_index(n) + grid.column_index(k); };

  for (int64_t n = begin; n < end; ++n, out += f.k) {
    if (f.kind == CodeKind::kVq) {
      decode_row_vq(f, n, out);
    } else {
      decode_row_codes(f, values, n, out);
    }
    switch (f.rule) {
      case Rule::kScaleFirst:
        for (int64_t k = 0; k < f.k; ++k) {
          const float c = out[k];
          const float z = constant_zero ? *constant_zero : zero_grid ? zero_grid->value(at(*zero_grid, n, k)) : 0.0f;
          const float outer = f.A ? f.A->value(outer_at(*f.A, n, k)) : 1.0f;
          const float inner = f.a ? f.a->value(at(*f.a, n, k)) : 1.0f;
          const float centred = constant_zero || zero_grid ? c - z : c;
          const auto apply_outer = [&](float x) { return !f.A ? x : f.A_divides ? x / outer : outer * x; };
          float w = f.code_first ? apply_outer(inner * centred) : apply_outer(inner) * centred;
          if (f.b) {
            float minimum = f.b->value(at(*f.b, n, k));
            if (f.B_is_A) minimum = outer * minimum;
            if (f.B) minimum = f.B->value(outer_at(*f.B, n, k)) * minimum;
            w += minimum;
          }
          out[k] = w;
        }
        break;
      case Rule::kIntegerFirst:
        for (int64_t k = 0; k < f.k; ++k) {
          const auto c = static_cast<int32_t>(out[k]);
          float inner;  // a whole number in either form; rounded scales keep the sign of a zero, as the tools' f32 does
          if (f.round_inner) {
            const float z = constant_zero ? *constant_zero : zero_grid ? zero_grid->value(at(*zero_grid, n, k)) : 0.0f;
            const float scaled = (f.a ? f.a->value(at(*f.a, n, k)) : 1.0f) * (static_cast<float>(c) - z);
            inner = round_half_even(scaled);
          } else {
            inner = static_cast<float>((f.a ? f.a->integer(at(*f.a, n, k)) : 1) * c +
                                       (f.b ? f.b->integer(at(*f.b, n, k)) : 0));
          }
          const float outer = f.A ? f.A->value(outer_at(*f.A, n, k)) : 1.0f;
          out[k] = f.A_divides ? inner / outer : outer * inner;
        }
        break;
      case Rule::kNested:
        for (int64_t k = 0; k < f.k; ++k) {
          const float inner = (*f.scale_lut)[static_cast<size_t>(f.a->integer(at(*f.a, n, k)))];
          const float scale = inner * f.A->value(outer_at(*f.A, n, k)) + f.nested_offset;
          out[k] = out[k] * scale;
        }
        break;
    }
  }
}

std::vector<float> dequantize(const QuantizedTensor& source) {
  std::vector<float> out(static_cast<size_t>(source.n() * source.k()));
  dequantize(source, 0, source.n(), out.data());
  return out;
}

Shape shape_of(const Weight& weight) {
  if (const Tensor* dense = std::get_if<Tensor>(&weight)) return dense->shape;
  const auto& quantized = std::get<QuantizedTensor>(weight);
  return {quantized.n(), quantized.k()};
}

Result<std::vector<float>> to_f32(const Weight& weight) {
  if (const Tensor* dense = std::get_if<Tensor>(&weight)) return to_f32(*dense);
  return dequantize(std::get<QuantizedTensor>(weight));
}

}  // namespace tare::tensor
