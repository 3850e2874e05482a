#include "quantize/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"
#include "numerics/rounding.h"
#include "quantize/forms/form.h"
#include "quantize/typed_scale.h"

namespace tare::quantize {

namespace {

using namespace numerics;
using tensor::DType;
using tensor::GridType;

// clamp(rne(v), lo, hi) without a library call; |lo|, |hi| far below 2^22. NaN gives lo.
inline float nearest(float v, float lo, float hi) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits behind the point
  v = v > lo ? v : lo;
  v = v < hi ? v : hi;
  return (v + kMagic) - kMagic;
}

// A scale of 0 (an all-zero group, or one that rounds to 0 as stored) becomes 1: every code then decodes to its zero.
float positive(float scale) {
  return scale > 0 ? scale : 1.0f;
}

}  // namespace

std::string describe(const GridSpec& spec) {
  const std::string group = spec.per_tensor        ? "per tensor"
                            : spec.group_size <= 0 ? "per channel"
                                                   : fmt::format("g{}", spec.group_size);
  switch (spec.kind) {
    case GridKind::kInteger:
      return fmt::format("{}{} {}", spec.symmetric ? "s" : "u", spec.bits, group);
    case GridKind::kMinimum:
      return fmt::format("u{} {} with minimum", spec.bits, group);
    case GridKind::kProgressive:
      return fmt::format("u{} {} progressive p{}", spec.bits, group, spec.protected_range);
    case GridKind::kQoqChannel:
      return fmt::format("u{} per channel with zero after scale", spec.bits);
    case GridKind::kForm:
      return describe_form(spec);
  }
  return "?";
}

Status check(const GridSpec& spec) {
  if (spec.bits < 2 || spec.bits > 8) {
    return invalid_input("bits out of range",
                         {.where = "--bits", .expected = "2..8", .found = fmt::format("{}", spec.bits)});
  }
  if (spec.kind == GridKind::kProgressive && spec.bits != 4) {
    return unsupported("progressive groups have 4-bit codes",
                       {.where = "--bits", .found = fmt::format("{}", spec.bits)});
  }
  if (spec.kind == GridKind::kQoqChannel && spec.group_size > 0) {
    return invalid_input("the per-channel QoQ grid has no groups", {.where = "--group-size", .expected = "-1"});
  }
  if (spec.per_tensor && (spec.kind != GridKind::kInteger || spec.group_size > 0)) {
    return invalid_input("a scale per tensor excludes groups", {.where = "--group-size", .expected = "-1"});
  }
  if (spec.scale_dtype != DType::kF16 && spec.scale_dtype != DType::kBF16 && spec.scale_dtype != DType::kF32) {
    return invalid_input("scales are stored as f16, bf16 or f32",
                         {.found = std::string(tensor::dtype_name(spec.scale_dtype))});
  }
  return spec.kind == GridKind::kForm ? check_form(spec) : Status();
}

Status check_finite(const float* w, int64_t n, int64_t k) {
  for (int64_t i = 0; i < n * k; ++i) {
    if (std::isfinite(w[i])) continue;
    return make_error(ErrorKind::kNotFinite, "weight is not finite",
                      {.where = fmt::format("row {}, column {}", i / k, i % k)});
  }
  return {};
}

ChosenGrid::Cell ChosenGrid::choose_cell(const float* w, int64_t count, float clip, float row_scale) const {
  float least = w[0];
  float most = w[0];
  for (int64_t i = 1; i < count; ++i) {
    least = std::min(least, w[i]);
    most = std::max(most, w[i]);
  }
  return cell_for(least * clip, most * clip, row_scale);
}

ChosenGrid::Cell ChosenGrid::cell_for(float least, float most, float row_scale) const {
  const auto steps = static_cast<float>((1 << spec_.bits) - 1);
  switch (spec_.kind) {
    case GridKind::kInteger:
      if (spec_.symmetric) {
        const float absmax = std::max(std::abs(least), std::abs(most));
        const float divisor = spec_.scale_rule == ScaleRule::kAbsmaxDivMax ? static_cast<float>(hi_) : steps / 2.0f;
        return {.scale = positive(as_stored(absmax / divisor, spec_.scale_dtype))};
      } else {
        const float lo = std::min(0.0f, least);
        const float hi = std::max(0.0f, most);
        const float scale = positive(as_stored((hi - lo) / steps, spec_.scale_dtype));
        return {.scale = scale, .zero = static_cast<float>(round_clamp(-lo / scale, 0, hi_))};
      }
    case GridKind::kMinimum: {
      const float lo = as_stored(least, spec_.scale_dtype);
      return {.scale = positive(as_stored((most - lo) / steps, spec_.scale_dtype)), .minimum = lo};
    }
    case GridKind::kQoqChannel:
      return {.scale = positive(as_stored((most - least) / steps, spec_.scale_dtype)),
              .minimum = -as_stored(-least, spec_.scale_dtype)};
    case GridKind::kProgressive: {
      const auto p = static_cast<float>(spec_.protected_range);
      const float lo = std::clamp(least / row_scale, -p, p);
      const float hi = std::clamp(most / row_scale, -p, p);
      return {.scale = static_cast<float>(round_clamp((hi - lo) / steps, 1, 127)),
              .minimum = static_cast<float>(-round_clamp(-lo, -127, 128))};
    }
    case GridKind::kForm:
      break;
  }
  return {};
}

// Everything but the cells: sizes, code range, row scales.
Result<ChosenGrid> ChosenGrid::start(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  TARE_TRY(check(spec));
  if (spec.kind == GridKind::kForm) {
    return unsupported("codes of this form are not chosen one by one",
                       {.found = describe(spec), .hint = "GPTQ and clip searches need an integer grid"});
  }
  TARE_TRY(check_finite(w, n, k));
  ChosenGrid grid;
  grid.spec_ = spec;
  grid.n_ = n;
  grid.k_ = k;
  grid.width_ = spec.per_tensor ? k : spec.group_width(k);
  grid.groups_ = k == 0 ? 0 : ceil_div(k, grid.width_);
  const bool signed_codes = spec.kind == GridKind::kInteger && spec.symmetric;
  const int half = 1 << (spec.bits - 1);
  grid.lo_ = !signed_codes ? 0 : spec.scale_rule == ScaleRule::kAbsmaxDivMax ? 1 - half : -half;
  grid.hi_ = signed_codes ? half - 1 : 2 * half - 1;
  if (spec.per_tensor) return grid;
  grid.cells_.resize(static_cast<size_t>(n * grid.groups_));
  if (spec.kind != GridKind::kProgressive) return grid;
  grid.row_scales_.resize(static_cast<size_t>(n));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float absmax = 0;
      for (int64_t i = 0; i < k; ++i) absmax = std::max(absmax, std::abs(w[row * k + i]));
      grid.row_scales_[static_cast<size_t>(row)] =
          positive(as_stored(absmax / static_cast<float>(spec.protected_range), DType::kF16));
    }
  });
  return grid;
}

Result<ChosenGrid> ChosenGrid::choose(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool,
                                      std::span<const float> clip) {
  TARE_ASSIGN(ChosenGrid grid, start(spec, w, n, k, pool));
  if (spec.per_tensor) {
    grid.cells_ = {grid.choose_cell(w, std::max<int64_t>(n * k, 1), clip.empty() ? 1.0f : clip[0], 1.0f)};
    return grid;
  }
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float row_scale = grid.row_scales_.empty() ? 1.0f : grid.row_scales_[static_cast<size_t>(row)];
      for (int64_t g = 0; g < grid.groups_; ++g) {
        const int64_t first = g * grid.width_;
        const auto index = static_cast<size_t>(row * grid.groups_ + g);
        grid.cells_[index] = grid.choose_cell(w + row * k + first, std::min(grid.width_, k - first),
                                              clip.empty() ? 1.0f : clip[index], row_scale);
      }
    }
  });
  return grid;
}

uint8_t ChosenGrid::encode(int64_t row, int64_t column, float value) const {
  const Cell& c = cell(row, column);
  const auto lo = static_cast<float>(lo_);
  const auto hi = static_cast<float>(hi_);
  switch (spec_.kind) {
    case GridKind::kInteger:
      // The zero is added after rounding, as the field does it: rne(w/s) + z.
      return static_cast<uint8_t>(static_cast<int>(nearest(value / c.scale, lo - c.zero, hi - c.zero) + c.zero) &
                                  ((1 << spec_.bits) - 1));
    case GridKind::kMinimum:
    case GridKind::kQoqChannel:
      return static_cast<uint8_t>(nearest((value - c.minimum) / c.scale, lo, hi));
    case GridKind::kProgressive: {
      const auto p = static_cast<float>(spec_.protected_range);
      const float v = std::clamp(value / row_scales_[static_cast<size_t>(row)], -p, p);
      return static_cast<uint8_t>(nearest((v - c.minimum) / c.scale, lo, hi));
    }
    case GridKind::kForm:
      break;
  }
  return 0;
}

void ChosenGrid::encode_row(int64_t row, const float* values, uint8_t* codes) const {
  const int mask = (1 << spec_.bits) - 1;
  const auto p = static_cast<float>(spec_.protected_range);
  const auto lo = static_cast<float>(lo_);
  const auto hi = static_cast<float>(hi_);
  for (int64_t first = 0; first < k_; first += width_) {
    const int64_t last = std::min(first + width_, k_);
    const Cell c = cell(row, first);
    switch (spec_.kind) {
      case GridKind::kInteger:
        for (int64_t i = first; i < last; ++i) {
          codes[i] = static_cast<uint8_t>(
              static_cast<int>(nearest(values[i] / c.scale, lo - c.zero, hi - c.zero) + c.zero) & mask);
        }
        break;
      case GridKind::kMinimum:
      case GridKind::kQoqChannel:
        for (int64_t i = first; i < last; ++i) {
          codes[i] = static_cast<uint8_t>(nearest((values[i] - c.minimum) / c.scale, lo, hi));
        }
        break;
      case GridKind::kProgressive: {
        const float row_scale = row_scales_[static_cast<size_t>(row)];
        for (int64_t i = first; i < last; ++i) {
          const float v = std::clamp(values[i] / row_scale, -p, p);
          codes[i] = static_cast<uint8_t>(nearest((v - c.minimum) / c.scale, lo, hi));
        }
        break;
      }
      case GridKind::kForm:
        break;
    }
  }
}

float ChosenGrid::decode(int64_t row, int64_t column, uint8_t code) const {
  const Cell& c = cell(row, column);
  switch (spec_.kind) {
    case GridKind::kInteger: {
      const int32_t value = spec_.symmetric ? sign_extend(code, spec_.bits) : static_cast<int32_t>(code);
      return c.scale * (static_cast<float>(value) - c.zero);
    }
    case GridKind::kMinimum:
    case GridKind::kQoqChannel:
      return c.scale * static_cast<float>(code) + c.minimum;
    case GridKind::kProgressive:
      return row_scales_[static_cast<size_t>(row)] * (static_cast<float>(code) * c.scale + c.minimum);
    case GridKind::kForm:
      break;
  }
  return 0;
}

Result<tensor::QuantizedTensor> ChosenGrid::finish(std::span<const uint8_t> codes, std::string format) const {
  tensor::QuantizedFields f{.n = n_, .k = k_, .bits = spec_.bits};
  const bool signed_codes = spec_.kind == GridKind::kInteger && spec_.symmetric;
  f.kind = signed_codes ? tensor::CodeKind::kInt : tensor::CodeKind::kUint;
  const int64_t stride = packed_bytes(k_, spec_.bits);
  std::vector<std::byte> packed(static_cast<size_t>(n_ * stride));
  for (int64_t row = 0; row < n_; ++row) {
    const uint8_t* in = codes.data() + row * k_;
    std::byte* out = packed.data() + row * stride;
    int64_t i = 0;
    if (spec_.bits == 4) {
      for (; i + 1 < k_; i += 2) out[i / 2] = static_cast<std::byte>(in[i] | in[i + 1] << 4);
    }
    for (; i < k_; ++i) write_code(out, i * spec_.bits, spec_.bits, in[i]);
  }
  f.codes = Buffer::own(std::move(packed));
  f.code_stride = stride;

  std::vector<float> scales, minima;
  std::vector<int16_t> zeros;
  std::vector<uint8_t> inner_scales;
  std::vector<int8_t> inner_minima;
  for (const Cell& c : cells_) {
    scales.push_back(c.scale);
    minima.push_back(c.minimum);
    zeros.push_back(static_cast<int16_t>(c.zero));
    inner_scales.push_back(static_cast<uint8_t>(c.scale));
    inner_minima.push_back(static_cast<int8_t>(c.minimum));
  }
  const int64_t tile_n = spec_.per_tensor ? std::max<int64_t>(n_, 1) : 1;
  const int64_t tile_k = spec_.per_tensor ? std::max<int64_t>(k_, 1) : width_;
  const auto make = [&](GridType type, Buffer values) {
    return tensor::Grid::make(type, n_, k_, tile_n, tile_k, std::move(values));
  };
  int64_t metadata = 0;
  switch (spec_.kind) {
    case GridKind::kInteger: {
      TARE_ASSIGN(f.a, make(scale_grid_type(spec_.scale_dtype), scale_buffer(scales, spec_.scale_dtype)));
      if (!spec_.symmetric) {
        TARE_ASSIGN(f.z, make(GridType::kS16, Buffer::own(std::move(zeros))));
        metadata += packed_bytes(static_cast<int64_t>(cells_.size()), spec_.bits);
      }
      break;
    }
    case GridKind::kMinimum:
    case GridKind::kQoqChannel: {
      TARE_ASSIGN(f.a, make(scale_grid_type(spec_.scale_dtype), scale_buffer(scales, spec_.scale_dtype)));
      TARE_ASSIGN(f.b, make(scale_grid_type(spec_.scale_dtype), scale_buffer(minima, spec_.scale_dtype)));
      metadata += static_cast<int64_t>(f.b->values.size());
      break;
    }
    case GridKind::kProgressive: {
      f.rule = tensor::Rule::kIntegerFirst;
      TARE_ASSIGN(f.a, make(GridType::kU8, Buffer::own(std::move(inner_scales))));
      TARE_ASSIGN(f.b, make(GridType::kS8, Buffer::own(std::move(inner_minima))));
      TARE_ASSIGN(f.A, tensor::Grid::make(GridType::kF16, n_, k_, 1, std::max<int64_t>(k_, 1),
                                          scale_buffer(row_scales_, DType::kF16)));
      metadata += static_cast<int64_t>(f.b->values.size() + f.A->values.size());
      break;
    }
    case GridKind::kForm:
      return internal_error("a form has no chosen grid");
  }
  f.origin = {.format = std::move(format),
              .bytes = static_cast<int64_t>(f.codes.size() + f.a->values.size()) + metadata};
  return tensor::QuantizedTensor::make(std::move(f));
}

Result<tensor::QuantizedTensor> round_to_nearest(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                                 std::string format, ThreadPool& pool, std::span<const float> clip) {
  if (spec.kind == GridKind::kForm) {
    if (!clip.empty()) return unsupported("ranges of this form are not clipped", {.found = describe(spec)});
    return quantize_form(spec, w, n, k, std::move(format), pool);
  }
  TARE_ASSIGN(const ChosenGrid grid, ChosenGrid::choose(spec, w, n, k, pool, clip));
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      grid.encode_row(row, w + row * k, codes.data() + row * k);
    }
  });
  return grid.finish(codes, std::move(format));
}

}  // namespace tare::quantize
