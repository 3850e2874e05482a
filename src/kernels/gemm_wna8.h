#pragma once

#include "kernels/linear.h"

namespace tare::kernels {

/// Integer codes of 1 to 8 bits under float scales per group of columns (GPTQ, AWQ, HQQ, GGUF) x symmetric 8-bit
/// activations: exact int32 sums per group, groups added in f32. Only where the scheme asks for 8-bit activations.
extern const LinearKernel kGemmWNa8Avx512Vnni;
extern const LinearKernel kGemmWNa8Avx2;

}  // namespace tare::kernels
