#pragma once

#include <cstdint>

#include "kernels/cpu/quantize_s8.h"

// The scale of a row from its largest magnitude, the same on every level. Only the folders of instruction sets include
// this: each compiles its own copy, with its own flags.

namespace tare::kernels {
namespace {

struct RowScale {
  float value = 0;
  bool finite = true;  // false: the row holds NaN or inf, its scale is NaN and its codes are 0
  bool fused = false;  // quotients may take the fused steps (quantize_s8.h)
};

// top: bits of the largest |x| of the row.
inline RowScale row_scale(int32_t top) {
  if (top >= 0x7f800000) return {.value = __builtin_nanf(""), .finite = false};
  float amax;
  __builtin_memcpy(&amax, &top, 4);
  float s = amax / 127.0f;
  if (s < 0x1p-126f) s = 0x1p-126f;
  int32_t bits;
  __builtin_memcpy(&bits, &s, 4);
  return {.value = s, .fused = s >= kLeastFusedScale && s < 0x1p117f && (bits & 0x7fffff) != 0x7fffff};
}

}  // namespace
}  // namespace tare::kernels
