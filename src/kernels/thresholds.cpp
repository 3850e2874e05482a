#include "kernels/thresholds.h"

namespace tare::kernels {

namespace {

struct Threshold {
  std::string_view kernel;
  std::string_view text;
};

constexpr Threshold kThresholds[] = {
    {"gemm_w4a8_avx512vnni",
     "M <= 24: codes go through registers, above they are expanded once into the first-level cache (M = 8 in cache: 28 "
     "us against 45 us; M = 1: 80-90 % of bandwidth against 50 %)"},
    {"gemm_w4a8_avx2",
     "M <= 12: codes go through registers, above they are expanded once into the first-level cache (in cache, N 1024, "
     "K 2048: 4, 8 tokens 112, 219 us through registers; 9, 12 tokens 285, 369 us expanded)"},
    {"gemm_wna16_avx512vnni", "M >= 9: 64 rows x 128 columns are decoded into the first-level cache"},
    {"gemm_wna16_avx2", "M >= 9: 64 rows x 128 columns are decoded into the first-level cache"},
    {"gemm_fp8_avx512vnni", "M >= 9: 64 rows x 128 columns are decoded into the first-level cache"},
    {"gemm_fp8_avx2", "M >= 9: 64 rows x 128 columns are decoded into the first-level cache"},
};

}  // namespace

std::string_view thresholds(std::string_view kernel_name) {
  for (const Threshold& row : kThresholds) {
    if (row.kernel == kernel_name) return row.text;
  }
  return {};
}

}  // namespace tare::kernels
