#include "kernels/linear.h"
#include "kernels/reference/gemm.h"

namespace tare::kernels {

/// Order is preference, nothing else is. The last row takes everything.
LinearRegistry builtin_linear_kernels() {
  return {
      &kGemmReference,
  };
}

}  // namespace tare::kernels
