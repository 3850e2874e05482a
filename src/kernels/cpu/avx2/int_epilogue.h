#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2/in_order.h"
#include "kernels/int_gemm.h"

/// What the integer products share on AVX2 without VNNI. For the .cpp files of this folder only; everything has
/// internal linkage.
namespace tare::kernels {
namespace {

constexpr int64_t kExpandedBlock = 8 * kLineBytes;  // one row block x one column block of u8 codes
constexpr int64_t kMostTokens = 6;                  // of one tile

inline __m256i load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store256(void* to, __m256i value) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), value);
}

/// Tokens of the next tile when `left` remain: as equal as possible.
inline int64_t next_tile(int64_t left) {
  const int64_t tiles = (left + kMostTokens - 1) / kMostTokens;
  return (left + tiles - 1) / tiles;
}

/// y of `count` tokens from their accumulators, in the order of linear.h: 8 rows at a time.
inline void write_outputs(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, int64_t token,
                          int64_t count, const int32_t* c, float* out, int64_t out_stride) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int row = 0; row < panel.rows; row += 8) {
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(panel.rows - row), lanes);
    const __m256 scale = _mm256_loadu_ps(panel.scale + row);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t m = token + t;
      __m256i acc = load256(c + t * kPanelRows + row);
      if (panel.zero) {
        acc = _mm256_sub_epi32(acc, _mm256_mullo_epi32(load256(panel.zero + row), _mm256_set1_epi32(tokens.sum[m])));
      }
      const int32_t zero = tokens.zero ? tokens.zero[m] : 0;
      if (tokens.zero) {
        acc = _mm256_sub_epi32(acc, _mm256_mullo_epi32(load256(panel.weight_sum + row), _mm256_set1_epi32(zero)));
      }
      const float sx = tokens.scale[m];
      __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(acc), _mm256_mul_ps(scale, _mm256_set1_ps(sx)));
      if (panel.min) {
        const auto sum = static_cast<int32_t>(tokens.sum[m] - static_cast<int64_t>(zero) * shape.k);
        const __m256 x = _mm256_set1_ps(sx * static_cast<float>(sum));
        y = _mm256_add_ps(y, _mm256_mul_ps(_mm256_loadu_ps(panel.min + row), x));
      }
      if (panel.bias) y = _mm256_add_ps(y, _mm256_loadu_ps(panel.bias + row));
      _mm256_maskstore_ps(out + m * out_stride + row, mask, y);
    }
  }
}

}  // namespace
}  // namespace tare::kernels
