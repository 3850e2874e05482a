#pragma once

#include <cstdint>

/// What the store of keys and values does to one token's vector, one implementation per instruction set. Plain data
/// only: files with their own compile flags must not emit inline functions of shared headers.
namespace tare::kernels {

struct KvRow {
  /// f32 -> f16 as numerics::f32_to_f16. codes: room for count rounded up to 16.
  void (*to_f16)(const float* x, int64_t count, uint16_t* codes) = nullptr;
  /// Smallest and largest value; false if one is NaN or inf.
  bool (*range)(const float* x, int64_t count, float* lo, float* hi) = nullptr;
  /// clamp(rne((x - zero) / scale), 0, largest) for finite x. codes: room for count rounded up to 16, zeros at the end.
  void (*to_codes)(const float* x, int64_t count, float zero, float scale, int32_t largest, uint8_t* codes) = nullptr;
};

extern const KvRow kKvRowAvx2;
extern const KvRow kKvRowAvx512Vnni;

}  // namespace tare::kernels
