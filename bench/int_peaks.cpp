#include "int_peaks.h"

#include <immintrin.h>

namespace tare::bench {

namespace {

// The products are written in assembly: a compiler that sees constant operands computes less than it is asked for.

// 24 independent accumulators, as in the 6 x 4 tile.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) double peak_vnni(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
        "vpdpbusd %%zmm30, %%zmm31, %%zmm\\r\n\t"
        ".endr" ::
            : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
              "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23");
  }
  return static_cast<double>(rounds) * 24 * 64;
}

// vpmaddubsw + vpaddw, 8 products deep, then vpmaddwd + vpaddd once.
__attribute__((target("avx2"))) double peak_u4_avx2(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        ".rept 8\n\t"
        ".irp r,0,1,2,3,4,5\n\t"
        "vpmaddubsw %%ymm15, %%ymm14, %%ymm12\n\t"
        "vpaddw %%ymm12, %%ymm\\r, %%ymm\\r\n\t"
        ".endr\n\t"
        ".endr\n\t"
        ".irp r,0,1,2,3,4,5\n\t"
        "vpmaddwd %%ymm15, %%ymm\\r, %%ymm12\n\t"
        "vpaddd %%ymm12, %%ymm13, %%ymm13\n\t"
        ".endr" ::
            : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm12", "ymm13");
  }
  return static_cast<double>(rounds) * 6 * 8 * 32;
}

// vpmaddwd of widened operands + vpaddd: the cheapest exact s8 x s8 without VNNI.
__attribute__((target("avx2"))) double peak_s8_avx2(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        ".rept 4\n\t"
        ".irp r,0,1,2,3,4,5\n\t"
        "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n\t"
        "vpaddd %%ymm12, %%ymm\\r, %%ymm\\r\n\t"
        ".endr\n\t"
        ".endr" ::
            : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm12");
  }
  return static_cast<double>(rounds) * 4 * 6 * 16;
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
