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

}  // namespace

const Elementwise kElementwiseReference = {.silu_mul = silu_mul};

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
