#include "kernels/cpu/float_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "kernels/cpu/tasks.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"

namespace tare::kernels {

namespace {

using namespace tensor;
using numerics::packed_bytes;
using numerics::read_code;

// Groups narrower than this are decoded with their scale: a scaled addition per group would cost more.
constexpr int64_t kDirectBelow = 32;

std::optional<FloatCode> code_of(CodeKind kind, int bits) {
  switch (kind) {
    case CodeKind::kUint:
    case CodeKind::kInt:
      return bits <= 2 ? FloatCode::kLut2 : bits <= 4 ? FloatCode::kInt4 : FloatCode::kInt8;
    case CodeKind::kE4M3:
      return FloatCode::kE4M3;
    case CodeKind::kE5M2:
      return FloatCode::kE5M2;
    case CodeKind::kE2M1:
      return FloatCode::kLut4;
    case CodeKind::kLut:
      if (bits <= 4) return bits <= 2 ? FloatCode::kLut2 : FloatCode::kLut4;
      return std::nullopt;
    case CodeKind::kVq:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<FloatCode> code_of(DType dtype) {
  if (dtype == DType::kF32) return FloatCode::kF32;
  if (dtype == DType::kBF16) return FloatCode::kBF16;
  if (dtype == DType::kF16) return FloatCode::kF16;
  return std::nullopt;
}

// Type that holds every number exactly, smallest first.
PlaneType smallest_type(const std::vector<float>& values) {
  const auto all = [&](auto&& exact) { return std::all_of(values.begin(), values.end(), exact); };
  const auto whole = [](float v, float lo, float hi) { return v >= lo && v <= hi && std::nearbyint(v) == v; };
  const auto same = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  const auto plus_zero = [](float v) { return v != 0 || std::bit_cast<uint32_t>(v) == 0; };
  if (all([&](float v) { return whole(v, -128, 127) && plus_zero(v); })) return PlaneType::kS8;
  if (all([&](float v) { return whole(v, 0, 255) && plus_zero(v); })) return PlaneType::kU8;
  if (all([&](float v) { return same(numerics::E4M3::decode(numerics::E4M3::encode_saturating(v)), v); })) {
    return PlaneType::kE4M3;
  }
  if (all([&](float v) { return v >= 0x1p-126f && (std::bit_cast<uint32_t>(v) & 0x7fffffu) == 0; })) {
    return PlaneType::kE8M0;
  }
  if (all([&](float v) { return same(numerics::f16_to_f32(numerics::f32_to_f16(v)), v); })) return PlaneType::kF16;
  if (all([&](float v) { return same(numerics::bf16_to_f32(numerics::f32_to_bf16(v)), v); })) return PlaneType::kBF16;
  return PlaneType::kF32;
}

uint32_t encode_plane(PlaneType type, float v) {
  switch (type) {
    case PlaneType::kF16:
      return numerics::f32_to_f16(v);
    case PlaneType::kBF16:
      return numerics::f32_to_bf16(v);
    case PlaneType::kS8:
    case PlaneType::kU8:
      return static_cast<uint32_t>(static_cast<int32_t>(v));
    case PlaneType::kE4M3:
      return numerics::E4M3::encode_saturating(v);
    case PlaneType::kE8M0:
      return std::bit_cast<uint32_t>(v) >> 23;
    default:
      return std::bit_cast<uint32_t>(v);
  }
}

// Numbers of one kind for all rows: values[row * columns + column].
struct PlaneValues {
  int64_t columns = 0;
  std::vector<float> values;
};

Result<Plane> store_plane(const PlaneValues& source, int64_t panels, HugeArray& bytes) {
  Plane plane{.columns = source.columns};
  if (source.values.empty()) return plane;
  plane.type = smallest_type(source.values);
  const int size = plane_bytes(plane.type);
  TARE_ASSIGN(bytes, HugeArray::make(panels * source.columns * 16 * size));
  const int64_t rows = static_cast<int64_t>(source.values.size()) / source.columns;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < source.columns; ++c) {
      const uint32_t raw = encode_plane(plane.type, source.values[static_cast<size_t>(row * source.columns + c)]);
      std::memcpy(bytes.data() + ((row / 16 * source.columns + c) * 16 + row % 16) * size, &raw,
                  static_cast<size_t>(size));
    }
  }
  plane.data = reinterpret_cast<const std::byte*>(bytes.data());
  return plane;
}

// The codes of one row as bytes.
void unpack_row(const QuantizedFields& f, int64_t row, uint8_t* out) {
  const std::byte* codes = f.codes.data() + row * f.code_stride;
  if (f.bits == 8 && f.code_bit_offset % 8 == 0) {
    std::memcpy(out, codes + f.code_bit_offset / 8, static_cast<size_t>(f.k));
  } else if (f.bits == 4 && f.code_bit_offset % 8 == 0) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(codes + f.code_bit_offset / 8);
    for (int64_t k = 0; k + 1 < f.k; k += 2) {
      out[k] = bytes[k / 2] & 15u;
      out[k + 1] = static_cast<uint8_t>(bytes[k / 2] >> 4);
    }
    if (f.k % 2 != 0) out[f.k - 1] = bytes[f.k / 2] & 15u;
  } else {
    for (int64_t k = 0; k < f.k; ++k) {
      out[k] = static_cast<uint8_t>(read_code(codes, f.code_bit_offset + k * f.bits, f.bits));
    }
  }
}

}  // namespace

int64_t FloatLinear::bytes() const {
  return codes_.bytes() + scale_.bytes() + outer_.bytes() + zero_.bytes() + offset_.bytes() + own_.bytes() +
         static_cast<int64_t>(bias_.size() * sizeof(float) + gather.size() * sizeof(int32_t));
}

/// Builds one FloatLinear, step by step.
class FloatPacker {
 public:
  FloatPacker(const LinearProblem& problem, std::span<const Weight> parts, ThreadPool& pool)
      : problem_(problem), parts_(parts), pool_(pool), linear_(std::make_unique<FloatLinear>()) {}

  Result<std::unique_ptr<PackedLinear>> pack(std::span<const float> bias) {
    linear_->problem = problem_;
    FloatMatrix& m = linear_->matrix;
    m.n = problem_.n;
    m.k = problem_.k;
    m.panels = ceil_div(m.n, 16);
    m.blocks = ceil_div(m.panels, kPanelsPerBlock);
    if (const auto* dtype = std::get_if<DType>(&problem_.weight)) {
      m.code = *code_of(*dtype);
      use_groups({0});
      TARE_TRY(pack_codes([&](int64_t row, std::byte* out) { read_dense_row(row, out); }, dtype_bits(*dtype) / 8));
    } else {
      TARE_TRY(pack_quantized());
    }
    linear_->bias_.assign(bias.begin(), bias.end());
    m.bias = linear_->bias_.empty() ? nullptr : linear_->bias_.data();
    return std::unique_ptr<PackedLinear>(std::move(linear_));
  }

 private:
  const QuantizedFields& fields(size_t part) const { return std::get<QuantizedTensor>(parts_[part]).fields(); }

  // Part and row inside it.
  std::pair<size_t, int64_t> locate(int64_t row) const {
    size_t part = 0;
    for (; part + 1 < parts_.size(); ++part) {
      const int64_t rows = shape_of(parts_[part])[0];
      if (row < rows) break;
      row -= rows;
    }
    return {part, row};
  }

  void read_dense_row(int64_t row, std::byte* out) const {
    const auto [part, local] = locate(row);
    const Tensor& t = std::get<Tensor>(parts_[part]);
    const int64_t bytes = problem_.k * dtype_bits(t.dtype) / 8;
    std::memcpy(out, t.data.data() + local * bytes, static_cast<size_t>(bytes));
  }

  // `first`: first column of each group in the order of codes. Fills steps, padding and gather.
  void use_groups(const std::vector<int64_t>& first, const std::vector<int32_t>& order = {}) {
    FloatMatrix& m = linear_->matrix;
    const int64_t unit = unit_of(m.code);
    m.groups = static_cast<int64_t>(first.size());
    std::vector<int32_t>& steps = linear_->group_step_;
    steps.assign(1, 0);
    bool moved = !order.empty();
    for (size_t g = 0; g < first.size(); ++g) {
      const int64_t end = g + 1 < first.size() ? first[g + 1] : m.k;
      const int64_t columns = end - first[g];
      moved |= columns % unit != 0;
      for (int64_t k = first[g]; k < first[g] + round_up(columns, unit); ++k) {
        linear_->gather.push_back(k >= end        ? -1
                                  : order.empty() ? static_cast<int32_t>(k)
                                                  : order[static_cast<size_t>(k)]);
      }
      steps.push_back(static_cast<int32_t>(steps.back() + ceil_div(columns, unit)));
    }
    m.group_step = steps.data();
    m.k_padded = steps.back() * unit;
    columns_ = linear_->gather;
    if (!moved) linear_->gather.clear();
  }

  // read(row, bytes): the codes of a row in column order, `size` bytes each.
  template <class Read>
  Status pack_codes(Read&& read, int size) {
    FloatMatrix& m = linear_->matrix;
    const int64_t unit = unit_of(m.code), steps = m.k_padded / unit;
    TARE_ASSIGN(linear_->codes_, HugeArray::make(m.panels * steps * 64));
    auto* const codes = reinterpret_cast<std::byte*>(linear_->codes_.data());
    pool_.parallel_for(m.panels, 1, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> row_codes(static_cast<size_t>(m.k * size + 1));
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t block = panel / kPanelsPerBlock, first = block * kPanelsPerBlock;
        const int64_t count = std::min(kPanelsPerBlock, m.panels - first);
        std::byte* base = codes + (first * steps + (panel - first)) * 64;
        for (int64_t r = 0; r < 16; ++r) {
          const int64_t row = panel * 16 + r;
          if (row < m.n) {
            read(row, row_codes.data());
          } else {
            std::fill(row_codes.begin(), row_codes.end(), std::byte{0});
          }
          for (int64_t s = 0; s < steps; ++s) {
            write_step(row_codes.data(), size, columns_.data() + s * unit, r, base + s * count * 64);
          }
        }
      }
    });
    m.codes = codes;
    return {};
  }

  // The columns of one step of one row: picture in float_gemm.h.
  void write_step(const std::byte* row, int size, const int32_t* columns, int64_t r, std::byte* step) const {
    const FloatCode code = linear_->matrix.code;
    const int unit = unit_of(code);
    if (code == FloatCode::kInt4 || code == FloatCode::kLut4 || code == FloatCode::kLut2) {
      const int bits = 32 / unit;
      uint32_t packed = 0;
      for (int j = 0; j < unit; ++j) {
        if (columns[j] >= 0) packed |= (static_cast<uint32_t>(row[columns[j]]) & ((1u << bits) - 1)) << (bits * j);
      }
      std::memcpy(step + r * 4, &packed, 4);
      return;
    }
    for (int j = 0; j < unit; ++j) {
      const int64_t at = code == FloatCode::kF16                                ? j * 32 + r * 2
                         : code == FloatCode::kE4M3 || code == FloatCode::kE5M2 ? (j % 2) * 32 + r * 2 + j / 2
                                                                                : r * 4 + j * size;
      if (columns[j] >= 0) {
        std::memcpy(step + at, row + columns[j] * size, static_cast<size_t>(size));
      } else {
        std::memset(step + at, 0, static_cast<size_t>(size));
      }
    }
  }

  // ---- quantized ----

  Status pack_quantized() {
    const QuantizedFields& f = fields(0);
    FloatMatrix& m = linear_->matrix;
    m.code = *code_of(f.kind, f.bits);
    TARE_TRY(check_parts());
    TARE_TRY(find_groups());
    m.scaled = true;
    m.direct = m.groups > 1 && group_size_ < kDirectBelow;
    choose_zeros();
    fill_table();
    TARE_TRY(collect_planes());

    const bool recode = m.code == FloatCode::kInt4 || m.code == FloatCode::kInt8;
    const bool extend = recode && f.kind == CodeKind::kInt && f.bits < 8;
    const auto shift = static_cast<uint8_t>(recode ? stored_shift_ : 0);
    std::atomic<bool> nan{false};
    TARE_TRY(pack_codes(
        [&](int64_t row, std::byte* out) {
          const auto [part, local] = locate(row);
          auto* codes = reinterpret_cast<uint8_t*>(out);
          unpack_row(fields(part), local, codes);
          if (extend) {
            for (int64_t k = 0; k < m.k; ++k) codes[k] = static_cast<uint8_t>(numerics::sign_extend(codes[k], f.bits));
          }
          if (shift != 0) {
            for (int64_t k = 0; k < m.k; ++k) codes[k] = static_cast<uint8_t>(codes[k] + shift);
          }
          if (f.kind == CodeKind::kE4M3 &&
              std::any_of(codes, codes + m.k, [](uint8_t c) { return (c & 0x7f) == 0x7f; })) {
            nan = true;
          }
        },
        1));
    if (nan) return make_error(ErrorKind::kNotFinite, "weight codes hold NaN", {.where = "e4m3 codes"});
    return {};
  }

  // What all parts must share because the matrix holds it once.
  Status check_parts() const {
    const QuantizedFields& f = fields(0);
    const float* zero = std::get_if<float>(&f.z);
    for (size_t i = 1; i < parts_.size(); ++i) {
      const QuantizedFields& g = fields(i);
      const float* other = std::get_if<float>(&g.z);
      const bool same_map =
          (!f.group_of_k && !g.group_of_k) ||
          (f.group_of_k && g.group_of_k &&
           std::equal(f.group_of_k->begin() + f.group_of_k_begin, f.group_of_k->begin() + f.group_of_k_begin + f.k,
                      g.group_of_k->begin() + g.group_of_k_begin));
      if (f.lut != g.lut || !same_map || (zero && other && *zero != *other)) {
        return unsupported("parts of one matrix differ in their table, zero point or act-order map",
                           {.hint = "bind them as matrices of their own"});
      }
    }
    return {};
  }

  template <class Visit>
  static void for_each_grid(const QuantizedFields& f, Visit&& visit) {
    if (f.a) visit(*f.a, true);
    if (f.A) visit(*f.A, false);
    if (const Grid* z = std::get_if<Grid>(&f.z)) visit(*z, true);
    if (f.b) visit(*f.b, true);
    if (f.B) visit(*f.B, false);
  }

  Status find_groups() {
    const QuantizedFields& f = fields(0);
    std::vector<int64_t> first;
    std::vector<int32_t> order;
    if (f.group_of_k) {
      const int32_t* map = f.group_of_k->data() + f.group_of_k_begin;
      order.resize(static_cast<size_t>(f.k));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) { return map[i] < map[j]; });
      for (size_t i = 0; i < order.size(); ++i) {
        if (i == 0 || map[order[i]] != map[order[i - 1]]) first.push_back(static_cast<int64_t>(i));
      }
      group_size_ = std::get<QuantSpec>(problem_.weight).group_size;
      if ((f.A && f.A->tile_k < f.k) || (f.B && f.B->tile_k < f.k)) {
        return unsupported("act-order under outer scales of column groups");
      }
    } else {
      int64_t tile = f.k;
      for_each_grid(f, [&](const Grid& grid, bool) {
        if (grid.tile_k < f.k) tile = std::gcd(tile < f.k ? tile : grid.tile_k, grid.tile_k);
      });
      for (int64_t k = 0; k < std::max<int64_t>(f.k, 1); k += std::max<int64_t>(tile, 1)) first.push_back(k);
      group_size_ = tile;
    }
    if (static_cast<int64_t>(first.size()) > float_group_bound(problem_)) {
      return unsupported("more groups of columns than the group size allows",
                         {.expected = fmt::format("at most {}", float_group_bound(problem_)),
                          .found = fmt::format("{}", first.size())});
    }
    use_groups(first, order);
    for (const int64_t k : first) sample_.push_back(order.empty() ? k : order[static_cast<size_t>(k)]);
    return {};
  }

  // Codes are stored as c + stored_shift_. Where the decoder can take all of a zero point it does: kInt4 a whole one,
  // tables any. What is left is added to decoded codes.
  void choose_zeros() {
    const QuantizedFields& f = fields(0);
    FloatMatrix& m = linear_->matrix;
    const bool by_table = m.code == FloatCode::kLut4 || m.code == FloatCode::kLut2;
    const int half = 1 << (f.bits - 1);
    // With zeros of their own, codes and zeros are taken from the middle, where both are small.
    const bool own_zeros = std::holds_alternative<Grid>(f.z) && f.kind == CodeKind::kUint;
    if (m.code == FloatCode::kInt4 && f.kind == CodeKind::kInt) stored_shift_ = half;
    if (m.code == FloatCode::kInt8 && f.kind == CodeKind::kUint) stored_shift_ = -half;
    const float* constant = std::get_if<float>(&f.z);
    if (by_table) {
      removed_ = own_zeros ? static_cast<float>(half) : 0;
      table_zero_ = constant ? *constant : removed_;
    } else if (m.code == FloatCode::kInt4) {
      const bool whole = constant && *constant == std::nearbyint(*constant) && std::fabs(*constant) <= 64;
      const int middle = own_zeros ? half : 0;
      m.nibble_zero = stored_shift_ + (whole ? static_cast<int>(*constant) : middle);
      removed_ = static_cast<float>(middle);
      if (constant && !whole) m.zero_constant = -*constant;
    } else if (constant || stored_shift_ != 0) {
      removed_ = static_cast<float>(-stored_shift_);
      if (!own_zeros) m.zero_constant = removed_ - (constant ? *constant : 0);
    }
  }

  void fill_table() {
    const QuantizedFields& f = fields(0);
    FloatMatrix& m = linear_->matrix;
    if (m.code == FloatCode::kInt4) {
      for (int i = 0; i < 16; ++i) m.table[i] = static_cast<float>(i - m.nibble_zero);
    } else if (m.code == FloatCode::kLut4 || m.code == FloatCode::kLut2) {
      const std::vector<float> values = code_values(f);
      const int period = m.code == FloatCode::kLut4 ? 16 : 4;
      for (int i = 0; i < 16; ++i) {
        const auto code = static_cast<size_t>(i % period);
        m.table[i] = code < values.size() ? values[code] - table_zero_ : 0.0f;
      }
    }
  }

  // Column of tiles of an outer grid that each group uses.
  const int32_t* outer_columns(const Grid& grid, std::vector<int32_t>& columns) {
    for (const int64_t k : sample_) columns.push_back(static_cast<int32_t>(grid.column_index(k)));
    return columns.data();
  }

  Status collect_planes() {
    const QuantizedFields& f = fields(0);
    FloatMatrix& m = linear_->matrix;
    PlaneValues scale, outer, zero, offset, own;
    const auto groups = static_cast<size_t>(m.groups);
    const bool whole_outer = f.A && f.rule != Rule::kNested;
    if (whole_outer) {
      m.outer_column = outer_columns(*f.A, linear_->outer_column_);
      outer.columns = 1 + *std::max_element(linear_->outer_column_.begin(), linear_->outer_column_.end());
    }
    if (f.B) {
      m.own_column = outer_columns(*f.B, linear_->own_column_);
      own.columns = 1 + *std::max_element(linear_->own_column_.begin(), linear_->own_column_.end());
    }
    scale.columns = zero.columns = offset.columns = m.groups;
    for (size_t part = 0; part < parts_.size(); ++part) {
      const auto& t = std::get<QuantizedTensor>(parts_[part]);
      const QuantizedFields& g = t.fields();
      const Grid* z = std::get_if<Grid>(&g.z);
      for (int64_t row = 0; row < g.n; ++row) {
        const auto inner = [&](const Grid& grid, int64_t k) { return grid.row_index(row) + t.group(grid, k); };
        for (size_t i = 0; i < groups; ++i) {
          const int64_t k = sample_[i];
          if (g.rule == Rule::kNested) {
            const float s = (*g.scale_lut)[static_cast<size_t>(g.a->integer(inner(*g.a, k)))];
            scale.values.push_back(s * g.A->value(g.A->row_index(row) + g.A->column_index(k)) + g.nested_offset);
          } else if (g.a) {
            scale.values.push_back(g.a->value(inner(*g.a, k)));
          }
          if (z) zero.values.push_back(removed_ - z->value(inner(*z, k)));
          if (g.b) offset.values.push_back(g.b->value(inner(*g.b, k)));
        }
        for (int64_t c = 0; whole_outer && c < outer.columns; ++c) {
          const float value = g.A->value(g.A->row_index(row) + c);
          outer.values.push_back(g.A_divides ? 1.0f / value : value);
        }
        for (int64_t c = 0; c < own.columns; ++c) own.values.push_back(g.B->value(g.B->row_index(row) + c));
      }
    }
    if (std::all_of(zero.values.begin(), zero.values.end(), [](float v) { return v == 0; })) zero.values.clear();
    TARE_ASSIGN(m.scale, store_plane(scale, m.panels, linear_->scale_));
    TARE_ASSIGN(m.outer, store_plane(outer, m.panels, linear_->outer_));
    TARE_ASSIGN(m.zero, store_plane(zero, m.panels, linear_->zero_));
    TARE_ASSIGN(m.offset, store_plane(offset, m.panels, linear_->offset_));
    TARE_ASSIGN(m.own, store_plane(own, m.panels, linear_->own_));
    const bool by_outer = f.B_is_A || (f.rule == Rule::kIntegerFirst && f.A);
    m.offset_factor = f.B ? OffsetFactor::kOwn : by_outer ? OffsetFactor::kOuter : OffsetFactor::kOne;
    return {};
  }

  const LinearProblem& problem_;
  std::span<const Weight> parts_;
  ThreadPool& pool_;
  std::unique_ptr<FloatLinear> linear_;
  std::vector<int32_t> columns_;  // as linear_->gather, also when nothing moves
  std::vector<int64_t> sample_;   // one column of each group
  int64_t group_size_ = 0;
  int stored_shift_ = 0;
  float table_zero_ = 0;
  float removed_ = 0;  // part of every zero that decoding takes
};

Verdict can_pack_float(const LinearProblem& problem) {
  if (const auto* dtype = std::get_if<DType>(&problem.weight)) {
    if (code_of(*dtype)) return Verdict::yes();
    return Verdict::no(fmt::format("dense {} is not f32, bf16 or f16", dtype_name(*dtype)));
  }
  const auto& spec = std::get<QuantSpec>(problem.weight);
  if (spec.kind == CodeKind::kVq) return Verdict::no("vector-quantized codes");
  if (!code_of(spec.kind, spec.bits)) return Verdict::no(fmt::format("a table of {} bits", spec.bits));
  if (spec.round_inner) return Verdict::no("weights rounded to whole numbers inside their scale");
  if (spec.group_size < 8 && spec.group_size < problem.k)
    return Verdict::no(fmt::format("groups of {} columns", spec.group_size));
  if (spec.act_order && spec.has_outer_scale && spec.outer_group_size < problem.k) {
    return Verdict::no("act-order under outer scales of column groups");
  }
  return Verdict::yes();
}

Result<std::unique_ptr<PackedLinear>> pack_float(const LinearProblem& problem, std::span<const Weight> parts,
                                                 std::span<const float> bias, ThreadPool& pool) {
  return FloatPacker(problem, parts, pool).pack(bias);
}

int64_t float_group_bound(const LinearProblem& problem) {
  const auto* spec = std::get_if<QuantSpec>(&problem.weight);
  if (!spec) return 1;
  int64_t size = std::max<int64_t>(spec->group_size, 1);
  if (spec->has_outer_scale) size = std::max<int64_t>(std::min(size, spec->outer_group_size), 1);
  // A column range of an act-order matrix keeps all groups.
  return ceil_div(problem.k, size) * (spec->act_order ? 8 : 1) + 1;
}

namespace {

int64_t unit_of_problem(const LinearProblem& problem) {
  if (const auto* dtype = std::get_if<DType>(&problem.weight)) return unit_of(*code_of(*dtype));
  const auto& spec = std::get<QuantSpec>(problem.weight);
  return unit_of(*code_of(spec.kind, spec.bits));
}

// Bytes of the parts of a workspace, each rounded up to whole cache lines.
int64_t gathered_bytes(int64_t m, int64_t k_padded) {
  return round_up(m * k_padded * 4, 64);
}
int64_t sums_bytes(int64_t m, int64_t groups) {
  return round_up(m * groups * 4, 64);
}

// Up to this many tokens, decoding in registers (again for each four tokens) beats decoding to a panel.
constexpr int64_t kRegisterTokens = 8;

}  // namespace

int64_t float_workspace_bytes(const LinearProblem& problem, int64_t m, int threads) {
  const int64_t groups = float_group_bound(problem);
  const int64_t k_padded = problem.k + groups * (unit_of_problem(problem) - 1);
  return gathered_bytes(m, k_padded) + sums_bytes(m, groups) + threads * kPanelScratchBytes;
}

void run_float(const FloatGemmOps& ops, const FloatLinear& linear, const float* x, int64_t x_stride, int64_t m,
               float* out, int64_t out_stride, std::span<std::byte> workspace, ThreadPool& pool) {
  const FloatMatrix& w = linear.matrix;
  std::byte* next = workspace.data();
  FloatTokens tokens{.x = x, .stride = x_stride, .m = m};
  if (!linear.gather.empty()) {
    auto* gathered = reinterpret_cast<float*>(next);
    next += gathered_bytes(m, w.k_padded);
    pool.parallel_for(m, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t k = 0; k < w.k_padded; ++k) {
          const int32_t from = linear.gather[static_cast<size_t>(k)];
          gathered[row * w.k_padded + k] = from < 0 ? 0.0f : x[row * x_stride + from];
        }
      }
    });
    tokens.x = gathered;
    tokens.stride = w.k_padded;
  }
  const bool offsets = w.offset.type != PlaneType::kNone || w.zero.type != PlaneType::kNone || w.zero_constant != 0;
  if (w.scaled && !w.direct && offsets) {
    auto* sums = reinterpret_cast<float*>(next);
    next += sums_bytes(m, w.groups);
    pool.parallel_for(m, 16, [&](int64_t begin, int64_t end) { ops.sum_groups(w, tokens, begin, end, sums); });
    tokens.group_sums = sums;
  }
  if (m <= kRegisterTokens) {
    for_each_neighbour(pool, w.blocks, [&](int64_t block, int) {
      ops.decode_in_registers(w, block, block + 1, tokens, out, out_stride);
    });
    return;
  }
  const int64_t slices = ceil_div(m, kPanelTokens);
  for_each_task(pool, w.blocks * slices, [&](int64_t task, int thread) {
    const int64_t first = task % slices * kPanelTokens, block = task / slices;
    FloatTokens slice = tokens;
    slice.m = std::min(kPanelTokens, m - first);
    slice.x += first * tokens.stride;
    if (slice.group_sums) slice.group_sums += first * w.groups;
    ops.decode_to_panel(w, block, block + 1, slice, out + first * out_stride, out_stride,
                        next + thread * kPanelScratchBytes);
  });
}

}  // namespace tare::kernels
