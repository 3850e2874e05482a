#include "kernels/cpu/quantize_s8.h"

#include <immintrin.h>

#include "kernels/cpu/row_scale.h"

namespace tare::kernels {
namespace {

inline __mmask16 lanes_of(int64_t left) {
  return left >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << left) - 1u);
}

template <bool Fused>
int32_t codes_of(const float* x, int64_t k, float s, int8_t* codes) {
  const __m512 divisor = _mm512_set1_ps(s);
  const __m512 inverse = _mm512_set1_ps(1.0f / s);
  __m512i sums = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += 16) {
    const __mmask16 mask = lanes_of(k - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    __m512 q;
    if (Fused) {
      q = _mm512_mul_ps(v, inverse);
      q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, divisor, v), inverse, q);
    } else {
      q = _mm512_div_ps(v, divisor);
    }
    const __m512i rounded = _mm512_cvtps_epi32(q);  // |x / s| <= 127 and a rounding
    sums = _mm512_add_epi32(sums, rounded);
    _mm_mask_storeu_epi8(codes + i, mask, _mm512_cvtepi32_epi8(rounded));
  }
  return _mm512_reduce_add_epi32(sums);
}

void quantize(const float* x, int64_t k, int8_t* codes, float* scale, int32_t* sum) {
  // Magnitudes as integers: their order is that of the floats, and NaN and inf come out on top.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += 16) {
    const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes_of(k - i), x + i));
    largest = _mm512_max_epi32(largest, _mm512_and_si512(bits, magnitude));
  }
  const int32_t top = _mm512_reduce_max_epi32(largest);
  const RowScale s = row_scale(top);
  *scale = s.value;
  if (!s.finite) {
    *sum = 0;
    for (int64_t i = 0; i < k; ++i) codes[i] = 0;
    return;
  }
  *sum = s.fused ? codes_of<true>(x, k, s.value, codes) : codes_of<false>(x, k, s.value, codes);
}

}  // namespace

extern void (*const kQuantizeS8Avx512Vnni)(const float*, int64_t, int8_t*, float*, int32_t*) = quantize;

}  // namespace tare::kernels
