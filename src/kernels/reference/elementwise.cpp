#include "kernels/elementwise.h"

#include <cmath>

namespace tare::kernels {

namespace {

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(gate[i]);
    out[i] = static_cast<float>(x / (1.0 + std::exp(-x)) * static_cast<double>(up[i]));
  }
}

void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(gate[i]);
    const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
    out[i] = static_cast<float>(x / (1.0 + std::exp(-2.0 * u)) * static_cast<double>(up[i]));
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float offset, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const float factor = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(n)) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * (weight[i] + offset);
}

void add_scaled(const float* branch, float multiplier, int64_t n, float* h) {
  for (int64_t i = 0; i < n; ++i) h[i] += multiplier * branch[i];
}

void rope(float* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; ++j) {
    const float a = head[j];
    const float b = head[j + half];
    head[j] = a * cos[j] - b * sin[j];
    head[j + half] = b * cos[j] + a * sin[j];
  }
}

}  // namespace

const Elementwise kElementwiseReference = {
    .silu_mul = silu_mul, .gelu_tanh_mul = gelu_tanh_mul, .rms_norm = rms_norm, .add_scaled = add_scaled, .rope = rope};

const Elementwise& elementwise(machine::Isa isa) {
  switch (isa) {
    case machine::Isa::kAvx512Vnni:
      return kElementwiseAvx512Vnni;
    case machine::Isa::kAvx2:
      return kElementwiseAvx2;
    case machine::Isa::kReference:
      break;
  }
  return kElementwiseReference;
}

}  // namespace tare::kernels
