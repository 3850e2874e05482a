#include "kernels/peaks.h"

#include <immintrin.h>

namespace tare::kernels {

namespace {

// 24 independent accumulators, as in a 6 x 4 tile of products.
double products(int64_t rounds) {
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

double f32(int64_t rounds) {
  // Whatever the registers held may be denormal numbers, which take a hundred times as long.
  asm volatile(
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,30,31\n\t"
      "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n\t"
      ".endr" ::
          : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm30",
            "zmm31");
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
        "vfmadd231ps %%zmm30, %%zmm31, %%zmm\\r\n\t"
        ".endr" ::
            : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11");
  }
  return static_cast<double>(rounds) * 12 * 16;
}

// Plain loads leave the memory idle between pages; fetched ahead as the kernels do, each line in two steps, it gives a
// sixth more (docs/decisions/decode.md). A fetch beyond the end does nothing.
uint64_t read(const uint8_t* data, int64_t bytes) {
  constexpr int64_t kToL2 = 8192, kToL1 = 4096;
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    for (int64_t line = i; line < i + 256; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(data + line + kToL2), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(data + line + kToL1), _MM_HINT_T0);
    }
    a = _mm512_xor_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(data + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(data + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(data + i + 192));
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(a));
}

}  // namespace

const PeakLoops kPeaksAvx512Vnni = {.u4s8 = products, .s8s8 = products, .f32 = f32, .read = read};

}  // namespace tare::kernels
