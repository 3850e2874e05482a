#pragma once

#include <cstdint>

#include "kernels/cpu/kv_row.h"

/// The bodies of kv_row.h over 16 lanes; each instruction set includes its own `Lanes` first.
namespace tare::kernels {
namespace {

/// 16 values from x + i on, or what is left of them with `rest` behind.
template <class L>
typename L::F lanes_at(const float* x, int64_t i, int64_t count, float rest) {
  if (i + 16 <= count) return L::load(x + i);
  float padded[16];
  for (int64_t j = 0; j < 16; ++j) padded[j] = i + j < count ? x[i + j] : rest;
  return L::load(padded);
}

template <class L>
void to_f16_body(const float* x, int64_t count, uint16_t* codes) {
  for (int64_t i = 0; i < count; i += 16) L::store_f16(codes + i, lanes_at<L>(x, i, count, 0.0f));
}

template <class L>
bool range_body(const float* x, int64_t count, float* lo, float* hi) {
  typename L::F least = L::set1(x[0]);
  typename L::F most = least;
  bool finite = true;
  for (int64_t i = 0; i < count; i += 16) {
    const typename L::F v = lanes_at<L>(x, i, count, x[0]);
    finite &= !L::any_not_finite(v);
    least = L::min(least, v);
    most = L::max(most, v);
  }
  *lo = -L::largest(L::sub(L::set1(-0.0f), least));
  *hi = L::largest(most);
  return finite;
}

template <class L>
void to_codes_body(const float* x, int64_t count, float zero, float scale, int32_t largest, uint8_t* codes) {
  const typename L::F z = L::set1(zero);
  const typename L::F s = L::set1(scale);
  for (int64_t i = 0; i < count; i += 16) {
    L::store_codes(codes + i, L::div(L::sub(lanes_at<L>(x, i, count, zero), z), s), largest);
  }
}

template <class L>
constexpr KvRow kKvRowBodies = {.to_f16 = to_f16_body<L>, .range = range_body<L>, .to_codes = to_codes_body<L>};

}  // namespace
}  // namespace tare::kernels
