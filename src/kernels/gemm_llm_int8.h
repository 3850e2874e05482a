#pragma once

#include "kernels/linear.h"

namespace tare::kernels {

/// LLM.int8: 8-bit weights with one scale per row x tokens of which the values from a threshold on stay floats; the
/// rest is 8-bit and goes through gemm_w8a8. Which values those are is decided for each token.
///     y = gemm_w8a8(rest) + float(sum over outliers k, rising, of x[k] * w[n,k])      the sum in double; then + bias
/// Exact as the integer kernels are: the same bits on every ISA level, whatever M.
/// Source: LLM.int8() (arXiv:2208.07339), section 3; there a column is an outlier for all tokens of a batch.
extern const LinearKernel kGemmLlmInt8Avx512Vnni;
extern const LinearKernel kGemmLlmInt8Avx2;

}  // namespace tare::kernels
