#pragma once

#include "kernels/linear.h"

namespace tare::kernels {

/// Takes every weight form and every activation spec, in plain loops: the meaning that other kernels are tested
/// against. Wants f32 input and quantizes it itself. Where weights and activations are integers it computes the exact
/// formula of linear.h; everything else is the product of dequantized values, accumulated in double.
extern const LinearKernel kGemmReference;

}  // namespace tare::kernels
