#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

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

}  // namespace
}  // namespace tare::kernels
