#include "kernels/peaks.h"

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
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile(
        ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
        "vfmadd231ps %%zmm30, %%zmm31, %%zmm\\r\n\t"
        ".endr" ::
            : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11");
  }
  return static_cast<double>(rounds) * 12 * 16;
}

}  // namespace

const PeakLoops kPeaksAvx512Vnni = {.u4s8 = products, .s8s8 = products, .f32 = f32};

}  // namespace tare::kernels
