#include "kernels/gemm_w4a8.h"
#include "kernels/gemm_w8a8.h"
#include "kernels/linear.h"
#include "kernels/reference/gemm.h"

namespace tare::kernels {

/// Order is preference, nothing else is. The last row takes everything.
LinearRegistry builtin_linear_kernels() {
  return {
      &kGemmW4A8Avx512Vnni, &kGemmW4A8Avx2, &kGemmW8A8Avx512Vnni, &kGemmW8A8Avx2, &kGemmReference,
  };
}

}  // namespace tare::kernels
