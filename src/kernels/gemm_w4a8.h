#pragma once

#include "kernels/linear.h"

namespace tare::kernels {

/// u4 weights (QoQ per channel and progressive groups) x 8-bit activations, int32 sums.
extern const LinearKernel kGemmW4A8Avx512Vnni;
extern const LinearKernel kGemmW4A8Avx2;

}  // namespace tare::kernels
