#pragma once

#include <cstdint>

#include "machine/isa.h"

/// Operations on one token between the matrix products. AVX2 and AVX-512 give the same bits: 16 lanes, the same order.
namespace tare::kernels {

struct Elementwise {
  /// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + e^-x). NaN stays. out may be gate or up. Relative error below
  /// 2^-20.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  /// The same with gelu(x) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3), which is x (1 + tanh u) / 2.
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n, float* out);
  /// out[i] = x[i] / sqrt(mean(x^2) + eps) * (weight[i] + offset). The sum of squares runs in four chains of 16 lanes.
  /// out may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float offset, float* out);
  /// h[i] += multiplier * branch[i], rounded twice.
  void (*add_scaled)(const float* branch, float multiplier, int64_t n, float* h);
  /// Turns the pairs (head[j], head[j + half]) by the angle of cos[j], sin[j].
  void (*rope)(float* head, const float* cos, const float* sin, int64_t half);
};
extern const Elementwise kElementwiseReference;
extern const Elementwise kElementwiseAvx2;
extern const Elementwise kElementwiseAvx512Vnni;

/// The operations of the highest level up to `isa`.
const Elementwise& elementwise(machine::Isa isa);

}  // namespace tare::kernels
