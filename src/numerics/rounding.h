#pragma once

#include <cmath>
#include <cstdint>

namespace tare::numerics {

/// Round to nearest integer, ties to even.
inline float round_half_even(float value) {
  return std::nearbyintf(value);
}
inline double round_half_even(double value) {
  return std::nearbyint(value);
}

/// clamp(rne(value), lo, hi) as an integer. NaN gives lo.
inline int32_t round_clamp(float value, int32_t lo, int32_t hi) {
  const float rounded = std::nearbyintf(value);
  if (!(rounded > static_cast<float>(lo))) return lo;
  if (!(rounded < static_cast<float>(hi))) return hi;
  return static_cast<int32_t>(rounded);
}

/// Unit roundoff of each float format, and the error bound of n rounded f32 steps, g = n u / (1 - n u).
inline constexpr double kUnitF32 = 0x1p-24;
inline constexpr double kUnitF16 = 0x1p-11;
inline constexpr double kUnitBf16 = 0x1p-8;
constexpr double accumulation_bound(double steps) {
  return steps * kUnitF32 / (1.0 - steps * kUnitF32);
}

}  // namespace tare::numerics
