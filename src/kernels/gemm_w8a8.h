#pragma once

#include "kernels/linear.h"

namespace tare::kernels {

/// 8-bit weights with one scale per row or tensor x 8-bit activations, int32 sums.
extern const LinearKernel kGemmW8A8Avx512Vnni;
extern const LinearKernel kGemmW8A8Avx2;

}  // namespace tare::kernels
