#pragma once

#include <cstdint>

#include "machine/isa.h"

/// Operations on single values between the matrix products.
namespace tare::kernels {

struct Elementwise {
  /// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + e^-x). NaN stays. out may be gate or up. Relative error below
  /// 2^-20; AVX2 and AVX-512 give the same bits.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
};
extern const Elementwise kElementwiseReference;
extern const Elementwise kElementwiseAvx2;
extern const Elementwise kElementwiseAvx512Vnni;

/// The operations of the highest level up to `isa`.
const Elementwise& elementwise(machine::Isa isa);

}  // namespace tare::kernels
