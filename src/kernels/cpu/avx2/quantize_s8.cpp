#include "kernels/cpu/quantize_s8.h"

#include <immintrin.h>

#include "kernels/cpu/row_scale.h"

namespace tare::kernels {
namespace {

// Lanes that a row of `left` more values has.
__m256i lanes_of(int64_t left) {
  const int count = left < 8 ? static_cast<int>(left) : 8;
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <bool Fused>
int32_t codes_of(const float* x, int64_t k, float s, int8_t* codes) {
  const __m256 divisor = _mm256_set1_ps(s);
  const __m256 inverse = _mm256_set1_ps(1.0f / s);
  __m256i sums = _mm256_setzero_si256();
  for (int64_t i = 0; i < k; i += 8) {
    const __m256 v = k - i >= 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, lanes_of(k - i));
    __m256 quotient;
    if (Fused) {
      quotient = _mm256_mul_ps(v, inverse);
      quotient = _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, divisor, v), inverse, quotient);
    } else {
      quotient = _mm256_div_ps(v, divisor);
    }
    const __m256i q = _mm256_cvtps_epi32(quotient);  // |x / s| <= 127 and a rounding
    sums = _mm256_add_epi32(sums, q);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    const __m128i bytes = _mm_packs_epi16(words, words);
    if (k - i >= 8) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), bytes);
    } else {
      alignas(16) int8_t rest[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(rest), bytes);
      for (int64_t j = 0; i + j < k; ++j) codes[i + j] = rest[j];
    }
  }
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
  int32_t sum = 0;
  for (const int32_t lane : lanes) sum += lane;
  return sum;
}

void quantize(const float* x, int64_t k, int8_t* codes, float* scale, int32_t* sum) {
  // Magnitudes as integers: their order is that of the floats, and NaN and inf come out on top.
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int64_t i = 0; i < k; i += 8) {
    const __m256i bits =
        _mm256_castps_si256(k - i >= 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, lanes_of(k - i)));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
  }
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  int32_t top = 0;
  for (const int32_t lane : lanes) top = lane > top ? lane : top;
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

extern void (*const kQuantizeS8Avx2)(const float*, int64_t, int8_t*, float*, int32_t*) = quantize;

}  // namespace tare::kernels
