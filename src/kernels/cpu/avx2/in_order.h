#pragma once

#include <immintrin.h>

/// Integer sums that are added in the order written. gcc 12 regroups the sums of a fully unrolled tile into trees and
/// spills every product on the way (docs/decisions/kernels-w4a8.md). For the .cpp files of this folder only.
namespace tare::kernels {
namespace {

inline __m256i add16_in_order(__m256i a, __m256i b) {
  a = _mm256_add_epi16(a, b);
  asm("" : "+x"(a));
  return a;
}

inline __m256i add32_in_order(__m256i a, __m256i b) {
  a = _mm256_add_epi32(a, b);
  asm("" : "+x"(a));
  return a;
}

}  // namespace
}  // namespace tare::kernels
