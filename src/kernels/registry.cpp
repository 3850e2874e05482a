#include "kernels/cpu/float_rows.h"
#include "kernels/gemm_llm_int8.h"
#include "kernels/gemm_w4a8.h"
#include "kernels/gemm_w8a8.h"
#include "kernels/gemm_wna8.h"
#include "kernels/linear.h"
#include "kernels/reference/gemm.h"

namespace tare::kernels {

/// Order is preference, nothing else is. The last row takes everything.
LinearRegistry builtin_linear_kernels() {
  return {
      &kGemmW4A8Avx512Vnni,  // clang-format off: one row a line
      &kGemmW4A8Avx2,       &kGemmW8A8Avx512Vnni,  &kGemmW8A8Avx2,  &kGemmLlmInt8Avx512Vnni,
      &kGemmLlmInt8Avx2,    &kGemmWNa8Avx512Vnni,  &kGemmWNa8Avx2,  &kGemmAvx512Vnni,
      &kGemmAvx2,           &kGemmWNa16Avx512Vnni, &kGemmWNa16Avx2, &kGemmFp8Avx512Vnni,
      &kGemmFp8Avx2,        &kGemmQdqAvx512Vnni,   &kGemmQdqAvx2,   &kGemmDequantThenGemm,
      &kGemmReference,  // clang-format on
  };
}

}  // namespace tare::kernels
