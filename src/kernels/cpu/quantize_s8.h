#pragma once

#include <cstdint>

namespace tare::kernels {

/// One token, dynamic and symmetric, exactly as reference/activations.h says: scale = amax / 127, codes rounded to
/// nearest even; a token with NaN or inf gets scale NaN and codes 0. codes: [k] s8; x: [k] f32.
extern void (*const kQuantizeS8Avx2)(const float* x, int64_t k, int8_t* codes, float* scale, int32_t* sum);

}  // namespace tare::kernels
