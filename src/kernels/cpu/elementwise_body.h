#pragma once

#include <cstdint>

#include "kernels/elementwise.h"

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
typename L::F gelu_tanh_mul_lanes(typename L::F x, typename L::F up) {
  const typename L::F cube = L::mul(L::mul(x, x), x);
  typename L::F u2 = L::mul(L::set1(1.5957691216057308f), L::fma(L::set1(0.044715f), cube, x));
  u2 = L::max(L::set1(-87.0f), u2);
  const typename L::F power = L::mul(u2, L::set1(-0x1.715476p0f));
  return L::mul(L::div(x, L::add(L::set1(1.0f), L::exp2(power))), up);
}

/// out = op(a, b) for n values; the last ones through a padded copy, as if each stood alone.
template <class L, class Op>
void for_lanes(const float* a, const float* b, int64_t n, float* out, Op op) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) L::store(out + i, op(L::load(a + i), L::load(b + i)));
  if (i == n) return;
  float x[16] = {}, y[16] = {};
  for (int64_t j = i; j < n; ++j) {
    x[j - i] = a[j];
    y[j - i] = b[j];
  }
  L::store(x, op(L::load(x), L::load(y)));
  for (int64_t j = i; j < n; ++j) out[j] = x[j - i];
}

template <class L>
void silu_mul_body(const float* gate, const float* up, int64_t n, float* out) {
  for_lanes<L>(gate, up, n, out, [](typename L::F x, typename L::F y) { return silu_mul_lanes<L>(x, y); });
}

template <class L>
void gelu_tanh_mul_body(const float* gate, const float* up, int64_t n, float* out) {
  for_lanes<L>(gate, up, n, out, [](typename L::F x, typename L::F y) { return gelu_tanh_mul_lanes<L>(x, y); });
}

template <class L>
void rms_norm_body(const float* x, const float* weight, int64_t n, float eps, float offset, float* out) {
  using F = typename L::F;
  F s0 = L::zero(), s1 = L::zero(), s2 = L::zero(), s3 = L::zero();
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const F a = L::load(x + i), b = L::load(x + i + 16), c = L::load(x + i + 32), d = L::load(x + i + 48);
    s0 = L::fma(a, a, s0);
    s1 = L::fma(b, b, s1);
    s2 = L::fma(c, c, s2);
    s3 = L::fma(d, d, s3);
  }
  for (; i + 16 <= n; i += 16) {
    const F a = L::load(x + i);
    s0 = L::fma(a, a, s0);
  }
  if (i < n) {
    float rest[16] = {};
    for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
    const F a = L::load(rest);
    s0 = L::fma(a, a, s0);
  }
  const float sum = L::sum(L::add(L::add(s0, s1), L::add(s2, s3)));
  const F factor = L::set1(1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps));
  const F shift = L::set1(offset);
  for_lanes<L>(x, weight, n, out, [=](F v, F w) { return L::mul(L::mul(v, factor), L::add(w, shift)); });
}

template <class L>
void add_scaled_body(const float* branch, float multiplier, int64_t n, float* h) {
  using F = typename L::F;
  const F factor = L::set1(multiplier);
  for_lanes<L>(branch, h, n, h, [=](F b, F v) { return L::add(v, L::mul(factor, b)); });
}

template <class L>
void rope_body(float* head, const float* cos, const float* sin, int64_t half) {
  using F = typename L::F;
  float* upper = head + half;
  int64_t j = 0;
  for (; j + 16 <= half; j += 16) {
    const F a = L::load(head + j), b = L::load(upper + j), c = L::load(cos + j), s = L::load(sin + j);
    L::store(head + j, L::sub(L::mul(a, c), L::mul(b, s)));
    L::store(upper + j, L::add(L::mul(b, c), L::mul(a, s)));
  }
  for (; j < half; ++j) {
    const float a = head[j], b = upper[j];
    head[j] = a * cos[j] - b * sin[j];
    upper[j] = b * cos[j] + a * sin[j];
  }
}

template <class L>
constexpr Elementwise kElementwiseBodies = {.silu_mul = silu_mul_body<L>,
                                            .gelu_tanh_mul = gelu_tanh_mul_body<L>,
                                            .rms_norm = rms_norm_body<L>,
                                            .add_scaled = add_scaled_body<L>,
                                            .rope = rope_body<L>};

}  // namespace
}  // namespace tare::kernels
