#include "kernels/peaks.h"

#include <immintrin.h>

namespace tare::kernels {

namespace {

// Six accumulators; each takes 8 products of u4 by s8 before its 16-bit lanes are widened, which is as many as fit.
double u4s8(int64_t rounds) {
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

double s8s8(int64_t rounds) {
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

// Two units, four cycles deep: eight chains are needed, twelve leave room.
double f32(int64_t rounds) {
  // Whatever the registers held may be denormal numbers, which take a hundred times as long.
  asm volatile(
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,14,15\n\t"
      "vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r\n\t"
      ".endr" ::
          : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm14",
            "ymm15");
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
        "vfmadd231ps %%ymm15, %%ymm14, %%ymm\\r\n\t"
        ".endr" ::
            : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11");
  }
  return static_cast<double>(rounds) * 12 * 8;
}

// Fetched ahead as the kernels do, each line in two steps (docs/decisions/decode.md). A fetch beyond the end does
// nothing.
uint64_t read(const uint8_t* data, int64_t bytes) {
  constexpr int64_t kToL2 = 8192, kToL1 = 4096;
  const auto* at = reinterpret_cast<const __m256i*>(data);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 4 <= bytes / 32; i += 4) {
    for (int64_t line = i * 32; line < i * 32 + 128; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(data + line + kToL2), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(data + line + kToL1), _MM_HINT_T0);
    }
    a = _mm256_xor_si256(a, _mm256_loadu_si256(at + i));
    b = _mm256_xor_si256(b, _mm256_loadu_si256(at + i + 1));
    c = _mm256_xor_si256(c, _mm256_loadu_si256(at + i + 2));
    d = _mm256_xor_si256(d, _mm256_loadu_si256(at + i + 3));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return static_cast<uint64_t>(_mm256_extract_epi64(a, 0) + _mm256_extract_epi64(a, 3));
}

}  // namespace

const PeakLoops kPeaksAvx2 = {.u4s8 = u4s8, .s8s8 = s8s8, .f32 = f32, .read = read};

}  // namespace tare::kernels
