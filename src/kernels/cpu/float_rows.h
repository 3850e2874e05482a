#pragma once

#include "kernels/linear.h"

namespace tare::kernels {

/// Dense f32, bf16 and f16 weights, f32 activations.
extern const LinearKernel kGemmAvx512Vnni;
extern const LinearKernel kGemmAvx2;

/// Coded weights of every kind but vector quantization, f32 activations: codes are decoded in registers (few tokens) or
/// through a panel of 64 rows x 128 columns that stays in L1 (many). No dense copy anywhere.
extern const LinearKernel kGemmWNa16Avx512Vnni;
extern const LinearKernel kGemmWNa16Avx2;

/// FP8 weights x e4m3 activations as GPUs do it: activations are rounded to e4m3, products accumulate in f32. It
/// reproduces the numbers of the scheme; it is not faster than 16-bit activations on a CPU without FP8 units.
extern const LinearKernel kGemmFp8Avx512Vnni;
extern const LinearKernel kGemmFp8Avx2;

/// Any other rounding of activations: rounded, then multiplied in f32. Right numbers where no integer kernel fits.
extern const LinearKernel kGemmQdqAvx512Vnni;
extern const LinearKernel kGemmQdqAvx2;

/// The naive path: the whole weight is dequantized to a dense f32 copy in memory, then multiplied. Only by --kernel.
extern const LinearKernel kGemmDequantThenGemm;

}  // namespace tare::kernels
