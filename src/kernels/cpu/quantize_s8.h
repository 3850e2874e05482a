#pragma once

#include <cstdint>

namespace tare::kernels {

/// Scales from here to below 2^127 / 2^10 take the correctly rounded quotient x / s by fused steps: with y = 1/s
/// rounded to nearest, q = x*y, r = x - q*s (exact), q + r*y is x/s rounded to nearest (Markstein), unless every bit of
/// the mantissa of s is set.
inline constexpr float kLeastFusedScale = 0x1p-90f;

/// One token, dynamic and symmetric, exactly as reference/activations.h says: scale = amax / 127, codes rounded to
/// nearest even; a token with NaN or inf gets scale NaN and codes 0. codes: [k] s8; x: [k] f32.
extern void (*const kQuantizeS8Avx2)(const float* x, int64_t k, int8_t* codes, float* scale, int32_t* sum);
extern void (*const kQuantizeS8Avx512Vnni)(const float* x, int64_t k, int8_t* codes, float* scale, int32_t* sum);

}  // namespace tare::kernels
