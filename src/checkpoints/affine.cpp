#include "checkpoints/affine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::CodeKind;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;

namespace {

Error not_affine(std::string what) {
  return unsupported("weight is no scale times (code - zero point)", {.found = std::move(what)});
}

DType dtype_of(GridType type) {
  return type == GridType::kF16 ? DType::kF16 : type == GridType::kBF16 ? DType::kBF16 : DType::kF32;
}

// Unsigned codes, one a byte; `offset` is what was added to them.
std::vector<uint8_t> unsigned_codes(const QuantizedFields& f) {
  std::vector<uint8_t> out(static_cast<size_t>(f.n * f.k));
  const uint32_t flip = f.kind == CodeKind::kInt ? 1u << (f.bits - 1) : 0u;
  for (int64_t row = 0; row < f.n; ++row) {
    const std::byte* in = f.codes.data() + row * f.code_stride;
    uint8_t* to = out.data() + row * f.k;
    for (int64_t i = 0; i < f.k; ++i) {
      to[i] = static_cast<uint8_t>(numerics::read_code(in, f.code_bit_offset + i * f.bits, f.bits) ^ flip);
    }
  }
  return out;
}

// The grid that says how many columns share a number; all of a, z and b must agree with it.
const Grid* sizing_grid(const QuantizedFields& f) {
  if (f.a) return &*f.a;
  if (f.A) return &*f.A;
  return nullptr;
}

// Column of tiles of `grid` for group g of `m`.
int64_t column_of(const QuantizedFields& f, const Grid& grid, const AffineMatrix& m, int64_t g, bool mapped) {
  return mapped && f.group_of_k ? g : grid.column_index(std::min(g * m.group, f.k - 1));
}

// Whether groups of m never cross a tile of `grid`.
bool refines(const Grid& grid, const AffineMatrix& m) {
  return grid.tile_k >= m.k + grid.origin_k || (grid.origin_k == 0 && grid.tile_k % m.group == 0);
}

struct Sources {
  const QuantizedFields& f;
  const AffineMatrix& m;
  float value(const Grid& grid, int64_t row, int64_t g, bool mapped) const {
    return grid.value(grid.row_index(row) + column_of(f, grid, m, g, mapped));
  }
};

// Zero points in units of unsigned codes, from z and from a minimum.
Status fill_zeros(const QuantizedFields& f, AffineMatrix& m) {
  const int32_t flip = f.kind == CodeKind::kInt ? 1 << (f.bits - 1) : 0;
  const Sources sources{f, m};
  const auto whole = [](float v) { return v == std::floor(v) && std::abs(v) < 32768.0f; };
  if (f.b) {
    if (!std::holds_alternative<std::monostate>(f.z)) return not_affine("a zero point and a minimum");
    const bool integers = f.rule == tensor::Rule::kIntegerFirst;
    for (int64_t row = 0; row < m.n; ++row) {
      for (int64_t g = 0; g < m.groups; ++g) {
        float minimum = sources.value(*f.b, row, g, true);
        float scale = m.scales[static_cast<size_t>(row * m.groups + g)];
        if (integers) {
          scale = f.a ? sources.value(*f.a, row, g, true) : 1.0f;
        } else if (f.B_is_A && f.A) {
          minimum = sources.value(*f.A, row, g, false) * minimum;
        } else if (f.B) {
          minimum = sources.value(*f.B, row, g, false) * minimum;
        }
        const float zero = scale == 0 ? (minimum == 0 ? 0.0f : 0.5f) : -minimum / scale;
        if (!whole(zero) || zero * scale != -minimum) {
          return not_affine(fmt::format("a minimum that is no whole number of scales (row {}, group {}: {} / {})", row,
                                        g, minimum, scale));
        }
        m.zeros.push_back(static_cast<int32_t>(zero) + flip);
      }
    }
  } else if (const Grid* z = std::get_if<Grid>(&f.z)) {
    for (int64_t row = 0; row < m.n; ++row) {
      for (int64_t g = 0; g < m.groups; ++g) {
        const float zero = sources.value(*z, row, g, true);
        if (!whole(zero)) return not_affine(fmt::format("float zero points (row {}, group {}: {})", row, g, zero));
        m.zeros.push_back(static_cast<int32_t>(zero) + flip);
      }
    }
  } else {
    const float* constant = std::get_if<float>(&f.z);
    const float zero = constant ? *constant : 0.0f;
    if (!whole(zero)) return not_affine(fmt::format("zero point {}", zero));
    m.zero = static_cast<int32_t>(zero) + flip;
    return {};
  }
  const int32_t middle = 1 << (m.bits - 1);
  if (std::all_of(m.zeros.begin(), m.zeros.end(), [&](int32_t z) { return z == middle; })) {
    m.zero = middle;
    m.zeros.clear();
  }
  return {};
}

}  // namespace

Result<AffineMatrix> affine_view(const QuantizedTensor& weight) {
  const QuantizedFields& f = weight.fields();
  if (f.kind != CodeKind::kUint && f.kind != CodeKind::kInt) return not_affine(describe(weight.spec()));
  if (f.rule == tensor::Rule::kNested || f.round_inner) return not_affine(describe(weight.spec()));
  if (f.code_first && f.a && f.A) return not_affine("a second scale that is applied after the first product");
  if (f.A_divides && !(f.a && !f.code_first)) return not_affine("a scale that divides");
  const Grid* sizing = sizing_grid(f);
  if (!sizing) return not_affine("no scale");
  AffineMatrix m{.n = f.n, .k = f.k, .bits = f.bits};
  m.group = std::max<int64_t>(std::min(sizing->tile_k, f.k), 1);
  m.groups = f.group_of_k ? sizing->tiles_k : ceil_div(f.k, m.group);
  m.tile_n = std::max<int64_t>(std::min(sizing->tile_n, f.n), 1);
  const auto check = [&](const Grid& grid, const char* name, bool mapped) -> Status {
    if (mapped && f.group_of_k) return {};
    if (f.group_of_k && grid.tile_k < f.k) return not_affine(fmt::format("act-order below a grid of {}", name));
    if (!refines(grid, m)) return not_affine(fmt::format("{} on another grid than the scales", name));
    return {};
  };
  TARE_TRY(check(*sizing, "scales", sizing == (f.a ? &*f.a : nullptr)));
  if (f.A) TARE_TRY(check(*f.A, "outer scales", false));
  if (f.b) TARE_TRY(check(*f.b, "minima", true));
  if (f.B) TARE_TRY(check(*f.B, "outer minima", false));
  if (const Grid* z = std::get_if<Grid>(&f.z)) TARE_TRY(check(*z, "zeros", true));
  const Sources sources{f, m};
  m.scale_dtype = f.a && f.A ? DType::kF32 : dtype_of(sizing->type);
  m.scales.reserve(static_cast<size_t>(m.n * m.groups));
  for (int64_t row = 0; row < m.n; ++row) {
    for (int64_t g = 0; g < m.groups; ++g) {
      const float inner = f.a ? sources.value(*f.a, row, g, true) : 1.0f;
      const float outer = f.A ? sources.value(*f.A, row, g, false) : 1.0f;
      const float scale = f.A_divides ? inner / outer : outer * inner;
      if (!std::isfinite(scale)) return not_affine(fmt::format("a scale beyond f32 (row {}, group {})", row, g));
      m.scales.push_back(scale);
    }
  }
  TARE_TRY(fill_zeros(f, m));
  m.codes = unsigned_codes(f);
  if (f.group_of_k) {
    const auto begin = f.group_of_k->begin() + f.group_of_k_begin;
    m.group_of_k.assign(begin, begin + f.k);
  }
  return m;
}

Result<AffineMatrix> round_again(const QuantizedTensor& weight, const std::string& where, int bits, int64_t group,
                                 const std::string& why, Losses& losses) {
  if (!losses.allowed()) {
    TARE_TRY(losses.lose(where, why));
  }
  AffineMatrix m{.n = weight.n(), .k = weight.k(), .bits = bits};
  m.group = group <= 0 ? std::max<int64_t>(m.k, 1) : group;
  m.groups = ceil_div(m.k, m.group);
  m.scale_dtype = DType::kF16;
  m.codes.resize(static_cast<size_t>(m.n * m.k));
  const auto largest = static_cast<float>((1 << bits) - 1);
  std::vector<float> row(static_cast<size_t>(m.k));
  float worst = 0;
  for (int64_t r = 0; r < m.n; ++r) {
    tensor::dequantize(weight, r, r + 1, row.data());
    for (int64_t g = 0; g < m.groups; ++g) {
      const auto begin = row.begin() + g * m.group;
      const auto end = row.begin() + std::min(m.k, (g + 1) * m.group);
      const auto [low, high] = std::minmax_element(begin, end);
      const float lowest = std::min(*low, 0.0f), highest = std::max(*high, 0.0f);
      const float scale = numerics::f16_to_f32(numerics::f32_to_f16(std::max((highest - lowest) / largest, 1e-7f)));
      if (!std::isfinite(scale)) return losses.refuse(where, why + ", and its range does not fit a float16 scale");
      const float zero = std::clamp(std::nearbyint(-lowest / scale), 0.0f, largest);
      m.scales.push_back(scale);
      m.zeros.push_back(static_cast<int32_t>(zero));
      for (auto at = begin; at != end; ++at) {
        const float code = std::clamp(std::nearbyint(*at / scale) + zero, 0.0f, largest);
        m.codes[static_cast<size_t>(r * m.k + (at - row.begin()))] = static_cast<uint8_t>(code);
        worst = std::max(worst, std::abs(*at - scale * (code - zero)));
      }
    }
  }
  TARE_TRY(losses.lose(where, fmt::format("{}; rounded again to {} bits in groups of {}, off by at most {:.3g}", why,
                                          bits, m.group, worst)));
  return m;
}

Result<AffineMatrix> affine_or_rounded(const QuantizedTensor& weight, const std::string& where, int bits, int64_t group,
                                       Losses& losses) {
  auto view = affine_view(weight);
  if (view.ok()) return view;
  return round_again(weight, where, bits, group, view.error().found, losses);
}

Result<std::vector<uint16_t>> half_scales(const AffineMatrix& m, DType dtype, const std::string& where,
                                          Losses& losses) {
  std::vector<uint16_t> out;
  out.reserve(m.scales.size());
  float worst = 0;
  for (const float scale : m.scales) {
    const uint16_t half = dtype == DType::kF16 ? numerics::f32_to_f16(scale) : numerics::f32_to_bf16(scale);
    const float back = dtype == DType::kF16 ? numerics::f16_to_f32(half) : numerics::bf16_to_f32(half);
    if (!std::isfinite(back))
      return losses.refuse(where, fmt::format("a scale of {}, beyond {}", scale, dtype_name(dtype)));
    if (scale != 0) worst = std::max(worst, std::abs(back - scale) / std::abs(scale));
    out.push_back(half);
  }
  if (worst > 0) {
    TARE_TRY(
        losses.lose(where, fmt::format("scales of {} that {} does not hold; rounded, off by at most {:.2e} of each",
                                       m.scale_dtype == DType::kF32 ? "two levels or F32" : dtype_name(m.scale_dtype),
                                       dtype_name(dtype), worst)));
  }
  return out;
}

}  // namespace tare::checkpoints
