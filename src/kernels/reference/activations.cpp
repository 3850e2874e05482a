#include "kernels/reference/activations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "numerics/rounding.h"

namespace tare::kernels {

namespace {

using numerics::E2M1;
using numerics::E4M3;
using tensor::ActivationGranularity;
using tensor::ActivationSpec;
using tensor::ActivationType;

struct IntegerRange {
  int32_t lowest;
  int32_t highest;
};

bool is_integer(ActivationType type) {
  return type == ActivationType::kS8 || type == ActivationType::kU8 || type == ActivationType::kS4;
}

IntegerRange range_of(const ActivationSpec& spec) {
  const bool narrow = spec.dynamic && spec.symmetric;
  switch (spec.type) {
    case ActivationType::kU8:
      return {0, 255};
    case ActivationType::kS4:
      return {narrow ? -7 : -8, 7};
    default:
      return {narrow ? -127 : -128, 127};
  }
}

float largest_code(const ActivationSpec& spec) {
  if (spec.type == ActivationType::kE4M3) return E4M3::max_value();
  if (spec.type == ActivationType::kE2M1) return E2M1::max_value();
  return static_cast<float>(range_of(spec).highest);
}

struct ScaleZero {
  float scale;
  int32_t zero;
};

// x: values of one group; skip[i] marks outliers.
ScaleZero choose(const ActivationSpec& spec, const float* x, int64_t count, const std::vector<bool>& skip) {
  if (!spec.dynamic) return {spec.scale, spec.zero};
  float amax = 0, lo = 0, hi = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (skip[static_cast<size_t>(i)]) continue;
    amax = std::max(amax, std::fabs(x[i]));
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
  }
  constexpr float floor = std::numeric_limits<float>::min();
  if (is_integer(spec.type) && !spec.symmetric) {
    const IntegerRange range = range_of(spec);
    const float scale = std::max((hi - lo) / static_cast<float>(range.highest - range.lowest), floor);
    return {scale, range.lowest + numerics::round_clamp(-lo / scale, 0, range.highest - range.lowest)};
  }
  if (spec.cap > 0) amax = std::min(amax, spec.cap);
  return {std::max(amax / largest_code(spec), floor), 0};
}

int32_t encode(const ActivationSpec& spec, float x, ScaleZero sz) {
  const float scaled = x / sz.scale;
  if (spec.type == ActivationType::kE4M3) return static_cast<int32_t>(E4M3::encode_saturating(scaled));
  if (spec.type == ActivationType::kE2M1) return static_cast<int32_t>(E2M1::encode_saturating(scaled));
  const IntegerRange range = range_of(spec);
  return numerics::round_clamp(scaled, range.lowest - sz.zero, range.highest - sz.zero) + sz.zero;
}

}  // namespace

float ReferenceActivations::unscaled(const ActivationSpec& spec, int64_t row, int64_t column) const {
  const int32_t code = codes[static_cast<size_t>(row * k + column)];
  if (spec.type == ActivationType::kE4M3) return E4M3::decode(static_cast<uint32_t>(code));
  if (spec.type == ActivationType::kE2M1) return E2M1::decode(static_cast<uint32_t>(code));
  return static_cast<float>(code - zero[static_cast<size_t>(row * groups + column / group_size)]);
}

ReferenceActivations quantize_reference(const ActivationSpec& spec, const float* x, int64_t m, int64_t k,
                                        int64_t stride) {
  ReferenceActivations out{.m = m, .k = k};
  out.group_size = std::max<int64_t>(spec.granularity == ActivationGranularity::kTokenGroup ? spec.group_size : k, 1);
  out.groups = std::max<int64_t>(ceil_div(k, out.group_size), 1);
  out.codes.assign(static_cast<size_t>(m * k), 0);
  out.scale.assign(static_cast<size_t>(m * out.groups), std::numeric_limits<float>::quiet_NaN());
  out.zero.assign(static_cast<size_t>(m * out.groups), 0);
  if (spec.outlier_threshold > 0) out.outliers.assign(static_cast<size_t>(m * k), 0.0f);

  std::vector<bool> skip;
  for (int64_t row = 0; row < m; ++row) {
    const float* values = x + row * stride;
    if (!std::all_of(values, values + k, [](float v) { return std::isfinite(v); })) continue;
    for (int64_t group = 0; group < out.groups; ++group) {
      const int64_t begin = group * out.group_size;
      const int64_t count = std::min(out.group_size, k - begin);
      skip.assign(static_cast<size_t>(count), false);
      for (int64_t i = 0; i < count; ++i) {
        if (spec.outlier_threshold <= 0 || std::fabs(values[begin + i]) < spec.outlier_threshold) continue;
        skip[static_cast<size_t>(i)] = true;
        out.outliers[static_cast<size_t>(row * k + begin + i)] = values[begin + i];
      }
      const ScaleZero sz = choose(spec, values + begin, count, skip);
      out.scale[static_cast<size_t>(row * out.groups + group)] = sz.scale;
      out.zero[static_cast<size_t>(row * out.groups + group)] = sz.zero;
      for (int64_t i = 0; i < count; ++i) {
        out.codes[static_cast<size_t>(row * k + begin + i)] =
            skip[static_cast<size_t>(i)] ? sz.zero : encode(spec, values[begin + i], sz);
      }
    }
  }
  return out;
}

}  // namespace tare::kernels
