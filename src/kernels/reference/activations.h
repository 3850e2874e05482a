#pragma once

#include <cstdint>
#include <vector>

#include "tensor/scheme.h"

namespace tare::kernels {

/// M tokens quantized as an ActivationSpec says: the definition that every fast quantizer must equal bitwise.
///
/// Integer types, per token (granularity kTensor with dynamic scales is decided per token too: a result must not depend
/// on the neighbours in the batch) or per token and group of channels:
///     symmetric   s = amax / L, true division (L = 127, 7; u8: 255 over [0, max]);  q = clamp(rne(x / s), -L, L)
///     asymmetric  lo = min(0, min x), hi = max(0, max x);  s = (hi - lo) / (Q - q0);  zero = q0 + rne(-lo / s);
///                 q = clamp(rne(x / s) + zero, q0, Q)      with codes q0..Q: s8 -128..127, u8 0..255, s4 -8..7
///     static      q = clamp(rne(x / scale) + zero, q0, Q)
/// e4m3: s = min(amax, cap) / 448, q = saturating e4m3(x / s);  e2m1: s = amax / 6, q = e2m1(x / s).
/// Scales are f32 and floored at the smallest normal number, so a zero row has codes 0. `cap` bounds amax.
/// A token with NaN or inf: scales NaN, codes `zero` = 0.
/// outlier_threshold > 0 (LLM.int8): values with |x| >= threshold are left out of amax, get code 0 and stand in
/// `outliers` instead, decided per token (the original decides per column over the whole batch).
struct ReferenceActivations {
  int64_t m = 0;
  int64_t k = 0;
  int64_t group_size = 0;  // K unless per token and group
  int64_t groups = 1;
  std::vector<int32_t> codes;   // [M,K]: integer codes; bit patterns of e4m3 and e2m1
  std::vector<float> scale;     // [M,groups]
  std::vector<int32_t> zero;    // [M,groups]
  std::vector<float> outliers;  // [M,K], or empty

  /// The number that code (m, k) stands for without its scale: q - zero, or the small float.
  float unscaled(const tensor::ActivationSpec& spec, int64_t row, int64_t column) const;
};

/// x: [M,K] f32, rows `stride` apart. spec.type is not kNone.
ReferenceActivations quantize_reference(const tensor::ActivationSpec& spec, const float* x, int64_t m, int64_t k,
                                        int64_t stride);

}  // namespace tare::kernels
