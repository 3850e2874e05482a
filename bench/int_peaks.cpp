#include "int_peaks.h"

#include <immintrin.h>

namespace tare::bench {

namespace {

volatile uint64_t sink;

// 24 independent accumulators, as in the 6 x 4 tile.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) double peak_vnni(int64_t rounds) {
  __m512i acc[24];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(-5);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(w), "+v"(x));
#pragma GCC unroll 24
    for (__m512i& a : acc) a = _mm512_dpbusd_epi32(a, w, x);
  }
  __m512i sum = acc[0];
  for (const __m512i& a : acc) sum = _mm512_add_epi32(sum, a);
  sink = static_cast<uint64_t>(_mm512_reduce_add_epi32(sum));
  return static_cast<double>(rounds) * 24 * 64;
}

// vpmaddubsw + vpaddw, 8 products deep, then vpmaddwd + vpaddd: 12 s16 accumulators.
__attribute__((target("avx2"))) double peak_u4_avx2(int64_t rounds) {
  __m256i total = _mm256_setzero_si256();
  __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(-5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i) {
    __m256i acc[10];
    asm volatile("" : "+x"(w), "+x"(x));
#pragma GCC unroll 10
    for (__m256i& a : acc) a = _mm256_maddubs_epi16(w, x);
#pragma GCC unroll 7
    for (int j = 1; j < 8; ++j) {
      asm volatile("" : "+x"(w), "+x"(x));
#pragma GCC unroll 10
      for (__m256i& a : acc) a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w, x));
    }
#pragma GCC unroll 10
    for (__m256i& a : acc) total = _mm256_add_epi32(total, _mm256_madd_epi16(a, ones));
  }
  sink = static_cast<uint64_t>(_mm256_extract_epi64(total, 0));
  return static_cast<double>(rounds) * 10 * 8 * 32;
}

// vpmaddwd of widened operands + vpaddd: the cheapest exact s8 x s8 without VNNI.
__attribute__((target("avx2"))) double peak_s8_avx2(int64_t rounds) {
  __m256i acc[12];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  __m256i w = _mm256_set1_epi16(3), x = _mm256_set1_epi16(-5);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(w), "+x"(x));
#pragma GCC unroll 12
    for (__m256i& a : acc) {
      __m256i product = _mm256_madd_epi16(w, x);
      asm volatile("" : "+x"(product));
      a = _mm256_add_epi32(a, product);
    }
  }
  __m256i sum = acc[0];
  for (const __m256i& a : acc) sum = _mm256_add_epi32(sum, a);
  sink = static_cast<uint64_t>(_mm256_extract_epi64(sum, 0));
  return static_cast<double>(rounds) * 12 * 16;
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const uint8_t* data, int64_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    a = _mm512_xor_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(data + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(data + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(data + i + 192));
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(a));
}

__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* data, int64_t bytes) {
  const auto* at = reinterpret_cast<const __m256i*>(data);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 4 <= bytes / 32; i += 4) {
    a = _mm256_xor_si256(a, _mm256_loadu_si256(at + i));
    b = _mm256_xor_si256(b, _mm256_loadu_si256(at + i + 1));
    c = _mm256_xor_si256(c, _mm256_loadu_si256(at + i + 2));
    d = _mm256_xor_si256(d, _mm256_loadu_si256(at + i + 3));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return static_cast<uint64_t>(_mm256_extract_epi64(a, 0) + _mm256_extract_epi64(a, 3));
}

}  // namespace

double run_int_peak(machine::Isa isa, bool s8, int64_t rounds) {
  if (isa == machine::Isa::kAvx512Vnni) return peak_vnni(rounds);
  return s8 ? peak_s8_avx2(rounds) : peak_u4_avx2(rounds);
}

uint64_t read_bytes(machine::Isa isa, const uint8_t* data, int64_t bytes) {
  return isa == machine::Isa::kAvx512Vnni ? read_avx512(data, bytes) : read_avx2(data, bytes);
}

}  // namespace tare::bench
