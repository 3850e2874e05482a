#pragma once

#include <cstdint>

/// The bodies of kernels/elementwise.h over 16 lanes; each instruction set includes its own `Lanes` first.
namespace tare::kernels {
namespace {

template <class L>
typename L::F silu_mul_lanes(typename L::F x, typename L::F up) {
  // Below -87 the result is 0 to within 1e-35, and e^-x stays finite. max keeps a NaN: it gives its second operand.
  x = L::max(L::set1(-87.0f), x);
  const typename L::F power = L::mul(x, L::set1(-0x1.715476p0f));
  return L::mul(L::div(x, L::add(L::set1(1.0f), L::exp2(power))), up);
}

template <class L>
void silu_mul_body(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) L::store(out + i, silu_mul_lanes<L>(L::load(gate + i), L::load(up + i)));
  if (i == n) return;
  float x[16] = {}, y[16] = {};
  for (int64_t j = i; j < n; ++j) {
    x[j - i] = gate[j];
    y[j - i] = up[j];
  }
  L::store(x, silu_mul_lanes<L>(L::load(x), L::load(y)));
  for (int64_t j = i; j < n; ++j) out[j] = x[j - i];
}

}  // namespace
}  // namespace tare::kernels
