#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/activations.h"
#include "kernels/reference/activations.h"

namespace tare::kernels {
namespace {

// Values over the whole range, with zeros, denormals and the ends where e^-x overflows or vanishes.
std::vector<float> gates() {
  std::vector<float> out = {0.0f, -0.0f, 1e-40f, -1e-40f, 88.0f, -88.0f, -87.4f, 200.0f, -200.0f, 1e30f, -3e38f};
  for (int i = -4000; i <= 4000; ++i) out.push_back(static_cast<float>(i) * 0.01f);
  return out;
}

TEST(Elementwise, SiluTimesUp) {
  const std::vector<float> gate = gates();
  std::vector<float> up(gate.size());
  for (size_t i = 0; i < up.size(); ++i) up[i] = 0.25f + static_cast<float>(i % 7);
  for (const machine::Isa isa : {machine::Isa::kReference, machine::Isa::kAvx2, machine::Isa::kAvx512Vnni}) {
    if (isa > machine::detect_isa()) {
      std::printf("skipped: this CPU has no %s\n", std::string(machine::isa_name(isa)).c_str());
      continue;
    }
    std::vector<float> out(gate.size());
    elementwise(isa).silu_mul(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const auto x = static_cast<double>(gate[i]);
      const double want = x / (1.0 + std::exp(-x)) * static_cast<double>(up[i]);
      EXPECT_NEAR(out[i], want, std::abs(want) * (std::abs(x) + 2) * 0x1p-23 + 1e-34)
          << gate[i] << " " << machine::isa_name(isa);
    }
  }
}

TEST(Elementwise, TailsSentinelsAndNan) {
  const std::vector<float> gate = gates();
  for (const machine::Isa isa : {machine::Isa::kReference, machine::Isa::kAvx2, machine::Isa::kAvx512Vnni}) {
    if (isa > machine::detect_isa()) continue;
    for (const int64_t n : {0, 1, 15, 16, 17, 31, 33, 96}) {
      std::vector<float> out(static_cast<size_t>(n) + 1, 777.0f);
      elementwise(isa).silu_mul(gate.data() + 100, gate.data() + 200, n, out.data());
      EXPECT_EQ(out.back(), 777.0f);
      for (int64_t i = 0; i < n; ++i) {  // each value as if alone
        float one = 0;
        elementwise(isa).silu_mul(gate.data() + 100 + i, gate.data() + 200 + i, 1, &one);
        EXPECT_EQ(out[static_cast<size_t>(i)], one);
      }
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float one = 1;
    float out = 0;
    elementwise(isa).silu_mul(&nan, &one, 1, &out);
    EXPECT_TRUE(std::isnan(out));
  }
}

TEST(Elementwise, SameBitsOnEveryLevel) {
  if (machine::detect_isa() < machine::Isa::kAvx512Vnni) GTEST_SKIP() << "skipped: this CPU has no avx512vnni";
  const std::vector<float> gate = gates();
  std::vector<float> a(gate.size()), b(gate.size());
  kElementwiseAvx2.silu_mul(gate.data(), gate.data(), static_cast<int64_t>(gate.size()), a.data());
  kElementwiseAvx512Vnni.silu_mul(gate.data(), gate.data(), static_cast<int64_t>(gate.size()), b.data());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

std::vector<float> drawn(size_t count, uint32_t seed, float spread) {
  std::vector<float> out(count);
  for (float& v : out) {
    seed = seed * 1664525u + 1013904223u;
    v = (static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f) * spread;
  }
  return out;
}

std::vector<machine::Isa> levels() {
  std::vector<machine::Isa> out = {machine::Isa::kReference};
  for (const machine::Isa isa : {machine::Isa::kAvx2, machine::Isa::kAvx512Vnni}) {
    if (isa <= machine::detect_isa()) out.push_back(isa);
  }
  return out;
}

TEST(Elementwise, GeluTanhTimesUp) {
  std::vector<float> gate = drawn(1031, 3, 9.0f);
  for (const float end : {0.0f, -0.0f, 1e-40f, 50.0f, -50.0f, 1e20f}) gate.push_back(end);
  const std::vector<float> up = drawn(gate.size(), 4, 2.0f);
  for (const machine::Isa isa : levels()) {
    std::vector<float> out(gate.size());
    elementwise(isa).gelu_tanh_mul(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const auto x = static_cast<double>(gate[i]);
      const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
      // x / (1 + e^-2u) keeps relative accuracy where 1 + tanh cancels; e^-2u carries |2u| roundings of its exponent.
      const double want = x / (1.0 + std::exp(-2 * u)) * static_cast<double>(up[i]);
      EXPECT_NEAR(out[i], want, std::abs(want) * (std::abs(2 * u) * 4 + 4) * 0x1p-23 + 1e-34) << gate[i];
    }
  }
}

TEST(Elementwise, RmsNormOfOddLengths) {
  for (const int64_t n : {1, 15, 96, 344, 576, 1031, 5632}) {
    const auto count = static_cast<size_t>(n);
    const std::vector<float> x = drawn(count, 5, 3.0f);
    const std::vector<float> w = drawn(count, 6, 1.0f);
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
    for (const machine::Isa isa : levels()) {
      for (const float offset : {0.0f, 1.0f}) {
        std::vector<float> out(count + 1, 777.0f);
        elementwise(isa).rms_norm(x.data(), w.data(), n, 1e-5f, offset, out.data());
        EXPECT_EQ(out.back(), 777.0f);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
        // n/64 roundings of the sum halve under the root; four more follow.
        const double bound = (static_cast<double>(n) / 128 + 6) * 0x1p-24;
        for (size_t i = 0; i < count; ++i) {
          const double want =
              static_cast<double>(x[i]) * factor * (static_cast<double>(w[i]) + static_cast<double>(offset));
          EXPECT_NEAR(out[i], want, std::abs(want) * bound + 1e-7 * bound) << i << " of " << n;
        }
        std::vector<float> in_place = x;
        elementwise(isa).rms_norm(in_place.data(), w.data(), n, 1e-5f, offset, in_place.data());
        EXPECT_EQ(std::memcmp(in_place.data(), out.data(), count * sizeof(float)), 0);
      }
    }
  }
}

TEST(Elementwise, AddScaledAndRopeEqualTheScalarOnes) {
  for (const int64_t n : {1, 16, 20, 32, 63, 64}) {
    const auto count = static_cast<size_t>(n);
    const std::vector<float> head = drawn(2 * count, 7, 2.0f), cos = drawn(count, 8, 1.0f), sin = drawn(count, 9, 1.0f);
    std::vector<float> want = head, sum = head;
    elementwise(machine::Isa::kReference).rope(want.data(), cos.data(), sin.data(), n);
    elementwise(machine::Isa::kReference).add_scaled(cos.data(), 0.3f, n, sum.data());
    for (const machine::Isa isa : levels()) {
      std::vector<float> got = head, added = head;
      elementwise(isa).rope(got.data(), cos.data(), sin.data(), n);
      elementwise(isa).add_scaled(cos.data(), 0.3f, n, added.data());
      EXPECT_EQ(got, want);
      EXPECT_EQ(added, sum);
    }
  }
}

TEST(Elementwise, NewOperationsHaveTheSameBitsOnEveryLevel) {
  if (machine::detect_isa() < machine::Isa::kAvx512Vnni) GTEST_SKIP() << "skipped: this CPU has no avx512vnni";
  const std::vector<float> x = drawn(1031, 10, 4.0f), w = drawn(1031, 11, 1.0f);
  std::vector<float> a(x.size()), b(x.size());
  kElementwiseAvx2.rms_norm(x.data(), w.data(), 1031, 1e-6f, 1.0f, a.data());
  kElementwiseAvx512Vnni.rms_norm(x.data(), w.data(), 1031, 1e-6f, 1.0f, b.data());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  kElementwiseAvx2.gelu_tanh_mul(x.data(), w.data(), 1031, a.data());
  kElementwiseAvx512Vnni.gelu_tanh_mul(x.data(), w.data(), 1031, b.data());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

// Quotients at and beside half-way points, over scales of every size: the fused quotient must equal the division.
TEST(QuantizeS8, EqualsTheReferenceAtHalfwayPoints) {
  const tensor::ActivationSpec spec{.type = tensor::ActivationType::kS8};
  const ActivationForm form{.dtype = tensor::DType::kI8, .quantizer = spec};
  uint32_t seed = 1;
  for (int turn = 0; turn < 600; ++turn) {
    seed = seed * 1664525u + 1013904223u;
    const int exponent = turn % 3 == 0 ? static_cast<int>(seed >> 24) - 140 : static_cast<int>(seed >> 28) - 8;
    float scale = std::ldexp(1.0f + static_cast<float>(seed >> 9 & 0x7fff) * 0x1p-15f, exponent);
    if (turn % 50 == 0) scale = std::ldexp(2.0f - 0x1p-23f, exponent);  // every bit of the mantissa
    std::vector<float> x = {127.0f * scale};
    for (int code = -127; code < 127; ++code) {
      const float half = (static_cast<float>(code) + 0.5f) * scale;
      x.insert(x.end(), {half, std::nextafter(half, 1e30f), std::nextafter(half, -1e30f)});
    }
    const auto k = static_cast<int64_t>(x.size());
    if (!std::isfinite(x[0])) continue;
    for (float& v : x) v = std::fabs(v) > x[0] ? 0.0f : v;
    const ReferenceActivations want = quantize_reference(spec, x.data(), 1, k, k);
    for (const machine::Isa isa : levels()) {
      alignas(64) static std::byte storage[4096];
      const ActivationStorage carved = carve_activations(form, 1, k, storage);
      write_activations(carved, x.data(), k, 0, 1, isa);
      ASSERT_EQ(carved.scale[0], want.scale[0]);
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(static_cast<const int8_t*>(carved.data)[i], want.codes[static_cast<size_t>(i)])
            << x[static_cast<size_t>(i)] << " / " << want.scale[0] << " " << machine::isa_name(isa);
      }
    }
  }
}

}  // namespace
}  // namespace tare::kernels
