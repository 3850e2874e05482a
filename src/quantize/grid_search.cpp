#include <algorithm>
#include <cmath>

#include "numerics/packing.h"
#include "quantize/grid.h"
#include "quantize/typed_scale.h"

namespace tare::quantize {

double ChosenGrid::loss(const Cell& c, const float* w, const float* weight, int64_t count, float row_scale) const {
  const bool integer = spec_.kind == GridKind::kInteger;
  const float scale = c.scale * row_scale;
  const float minimum = c.minimum * row_scale;
  const float inverse = 1.0f / scale;
  const float lo = static_cast<float>(lo_) - (integer ? c.zero : 0.0f);
  const float hi = static_cast<float>(hi_) - (integer ? c.zero : 0.0f);
  constexpr float kMagic = 12582912.0f;
  // Four chains, so that the sum does not wait for itself.
  float sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) {
      float u = (w[i + j] - minimum) * inverse;
      u = u > lo ? u : lo;
      u = u < hi ? u : hi;
      u = (u + kMagic) - kMagic;
      const float d = u * scale + minimum - w[i + j];
      sums[j] += weight[i + j] * d * d;
    }
  }
  for (; i < count; ++i) {
    const float u = std::nearbyintf(std::clamp((w[i] - minimum) * inverse, lo, hi));
    const float d = u * scale + minimum - w[i];
    sums[0] += weight[i] * d * d;
  }
  return static_cast<double>(sums[0]) + static_cast<double>(sums[1]) + static_cast<double>(sums[2]) +
         static_cast<double>(sums[3]);
}

Result<ChosenGrid> ChosenGrid::search(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool,
                                      std::span<const float> weight) {
  TARE_ASSIGN(ChosenGrid grid, start(spec, w, n, k, pool));
  if (spec.per_tensor || n == 0 || k == 0) return choose(spec, w, n, k, pool);
  double mean = 0;
  for (const float v : weight) mean += static_cast<double>(v) / static_cast<double>(k);
  std::vector<float> importance(weight.begin(), weight.end());
  for (float& v : importance) v = mean > 0 ? v / static_cast<float>(mean) + 0.01f : 1.0f;
  const bool one_sided = spec.kind == GridKind::kInteger && spec.symmetric;
  pool.parallel_for(n, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float row_scale = grid.row_scales_.empty() ? 1.0f : grid.row_scales_[static_cast<size_t>(row)];
      for (int64_t g = 0; g < grid.groups_; ++g) {
        const int64_t first = g * grid.width_;
        const int64_t count = std::min(grid.width_, k - first);
        const float* values = w + row * k + first;
        const auto [least, most] = std::minmax_element(values, values + count);
        Cell best = grid.cell_for(*least, *most, row_scale);
        double best_loss = grid.loss(best, values, importance.data() + first, count, row_scale);
        float a = 1, b = 1;
        const auto attempt = [&](float lower, float upper) {
          const Cell cell = grid.cell_for(*least * lower, *most * upper, row_scale);
          const double loss = grid.loss(cell, values, importance.data() + first, count, row_scale);
          if (!(loss < best_loss)) return;
          best = cell;
          best_loss = loss;
          a = lower;
          b = upper;
        };
        for (int step = 1; step <= 22; ++step) {
          const float factor = 1.04f - 0.02f * static_cast<float>(step);
          attempt(factor, factor);
        }
        if (!one_sided) {
          const float from_a = a;
          for (int step = -5; step <= 5; ++step) attempt(from_a + 0.04f * static_cast<float>(step), b);
          const float from_b = b;
          for (int step = -5; step <= 5; ++step) attempt(a, from_b + 0.04f * static_cast<float>(step));
        }
        grid.cells_[static_cast<size_t>(row * grid.groups_ + g)] = best;
      }
    }
  });
  return grid;
}

ChosenGrid::Group ChosenGrid::group(int64_t row, int64_t group) const {
  const Cell& c = cell(row, group * width_);
  switch (spec_.kind) {
    case GridKind::kInteger:
      return {.scale = c.scale};
    case GridKind::kMinimum:
    case GridKind::kQoqChannel:
      return {.scale = c.scale, .minimum = c.minimum, .has_minimum = true};
    case GridKind::kProgressive: {
      const float s1 = row_scales_[static_cast<size_t>(row)];
      return {.scale = s1 * c.scale, .minimum = s1 * c.minimum, .has_minimum = true, .step = s1};
    }
    case GridKind::kForm:
      break;
  }
  return {};
}

bool ChosenGrid::move(int64_t row, int64_t group, float scale, float minimum, const uint8_t* codes) {
  if (!(scale > 0) || !std::isfinite(scale) || !std::isfinite(minimum)) return false;
  Cell& c = cells_[static_cast<size_t>(spec_.per_tensor ? 0 : row * groups_ + group)];
  if (spec_.kind == GridKind::kProgressive) {
    const float s1 = row_scales_[static_cast<size_t>(row)];
    const float p = static_cast<float>(spec_.protected_range);
    const float s2 = std::nearbyintf(scale / s1);
    const float min8 = std::nearbyintf(minimum / s1);
    // The proof of the protected range asks for a scale that no range inside it exceeds.
    if (s2 < 1 || s2 > std::nearbyintf(2 * p / 15.0f) || std::abs(min8) > p) return false;
    for (int64_t i = 0; i < group_end(group) - group_first(group); ++i) {
      if (std::abs(static_cast<float>(codes[i]) * s2 + min8) > 127) return false;
    }
    c.scale = s2;
    c.minimum = min8;
    return true;
  }
  const float rounded = as_stored(scale, spec_.scale_dtype);
  if (!(rounded > 0)) return false;
  c.scale = rounded;
  if (spec_.kind == GridKind::kMinimum) c.minimum = as_stored(minimum, spec_.scale_dtype);
  if (spec_.kind == GridKind::kQoqChannel) c.minimum = -as_stored(-minimum, spec_.scale_dtype);
  return true;
}

float ChosenGrid::unit(int64_t row, int64_t column, uint8_t code) const {
  if (spec_.kind != GridKind::kInteger) return static_cast<float>(code);
  if (spec_.symmetric) return static_cast<float>(numerics::sign_extend(code, spec_.bits));
  return static_cast<float>(code) - cell(row, column).zero;
}

}  // namespace tare::quantize
