// The edges of LLM.int8 that the sweep does not reach: its own scales, tokens of nothing but outliers, the threshold.
#include "kernels/gemm_llm_int8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {
namespace {

using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedTensor;

// bitsandbytes' own form: (c * absmax) / 127.
tensor::Weight weight(int64_t n, int64_t k, uint64_t seed) {
  const std::vector<float> values = sample_tokens(n, k, seed);
  std::vector<float> absmax(static_cast<size_t>(n), 0.0f);
  std::vector<int8_t> codes(values.size());
  for (int64_t row = 0; row < n; ++row) {
    float& most = absmax[static_cast<size_t>(row)];
    for (int64_t i = 0; i < k; ++i) most = std::max(most, std::fabs(values[static_cast<size_t>(row * k + i)]));
    for (int64_t i = 0; i < k; ++i) {
      const auto at = static_cast<size_t>(row * k + i);
      codes[at] = static_cast<int8_t>(std::nearbyint(values[at] * 127 / most));
    }
  }
  tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kInt, .bits = 8};
  f.codes = Buffer::own(std::move(codes));
  f.a = *Grid::make(GridType::kF32, n, k, 1, k, Buffer::own(std::move(absmax)));
  f.A = *Grid::make(GridType::kF32, n, k, n, k, Buffer::own(std::vector<float>{127.0f}));
  f.A_divides = true;
  f.code_first = true;
  return *QuantizedTensor::make(std::move(f));
}

TEST(GemmLlmInt8, EqualsTheReferenceOnItsOwnForm) {
  const machine::Capabilities caps = machine::capabilities();
  ThreadPool pool(2);
  int64_t ran = 0;
  for (const LinearKernel* kernel : {&kGemmLlmInt8Avx512Vnni, &kGemmLlmInt8Avx2}) {
    if (kernel->isa > caps.isa) continue;
    ++ran;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{33, 576}, {96, 344}, {17, 1031}, {1, 1}}) {
      const tensor::Weight w = weight(n, k, 3);
      const std::vector<float> bias = sample_tokens(1, n, 4);
      LinearProblem problem = problem_of(w, {.type = tensor::ActivationType::kS8, .outlier_threshold = 6.0f}, true);
      EXPECT_TRUE(kernel->can_implement(problem, caps).ok);
      constexpr int64_t m = 5;
      std::vector<float> x = sample_tokens(m, k, 5);
      for (int64_t i = 0; i < k; ++i) {
        x[static_cast<size_t>(k + i)] = i % 2 == 0 ? 6.0f : -7.0f;  // the threshold itself is one; all are
        x[static_cast<size_t>(2 * k + i)] = 0;
        x[static_cast<size_t>(3 * k + i)] = std::fmin(std::fmax(x[static_cast<size_t>(i)], -5.9f), 5.9f);  // none is
      }
      const std::vector<float> expected = *run_linear(kGemmReference, problem, {&w, 1}, bias, x, m, caps.isa, pool);
      const std::vector<float> y = *run_linear(*kernel, problem, {&w, 1}, bias, x, m, caps.isa, pool);
      EXPECT_EQ(y, expected) << kernel->name << " " << n << " x " << k;
      // What stays a float is not rounded: a token of outliers gives the product with the weights themselves.
      const std::vector<float> decoded = *tensor::to_f32(w);
      for (int64_t row = 0; row < n; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += static_cast<double>(x[static_cast<size_t>(k + i)]) * decoded[static_cast<size_t>(row * k + i)];
        }
        EXPECT_EQ(y[static_cast<size_t>(n + row)], static_cast<float>(sum) + bias[static_cast<size_t>(row)]);
      }
    }
  }
  if (caps.isa >= machine::Isa::kAvx2) {
    EXPECT_GT(ran, 0);
  }
}

// A planted channel of 100 beside values of deviation 1. The step of a token is its largest value / 127, and the error
// of the product grows with its square: without the outlier it shrinks by (100 / largest of the rest)^2, about a
// thousand.
TEST(GemmLlmInt8, APlantedOutlierCostsNothing) {
  const machine::Capabilities caps = machine::capabilities();
  ThreadPool pool(1);
  constexpr int64_t n = 64, k = 576, m = 8;
  const tensor::Weight w = weight(n, k, 7);
  const std::vector<float> decoded = *tensor::to_f32(w);
  std::vector<float> x = sample_tokens(m, k, 8);
  double gain = 0;
  for (int64_t t = 0; t < m; ++t) {
    float largest = 0;
    for (int64_t i = 0; i < k; ++i) {
      float& v = x[static_cast<size_t>(t * k + i)];
      v = std::fmin(std::fmax(v, -4.0f), 4.0f);
      largest = std::max(largest, std::fabs(v));
    }
    x[static_cast<size_t>(t * k + 77)] = 100;
    gain += 1e4 / static_cast<double>(largest * largest) / m;
  }
  const auto error = [&](const LinearKernel& kernel, float threshold) {
    const LinearProblem problem =
        problem_of(w, {.type = tensor::ActivationType::kS8, .outlier_threshold = threshold}, false);
    const std::vector<float> y = *run_linear(kernel, problem, {&w, 1}, {}, x, m, caps.isa, pool);
    double sum = 0;
    for (int64_t t = 0; t < m; ++t) {
      for (int64_t row = 0; row < n; ++row) {
        double exact = 0;
        for (int64_t i = 0; i < k; ++i) {
          exact += static_cast<double>(x[static_cast<size_t>(t * k + i)]) * decoded[static_cast<size_t>(row * k + i)];
        }
        const double d = static_cast<double>(y[static_cast<size_t>(t * n + row)]) - exact;
        sum += d * d;
      }
    }
    return sum;
  };
  const double measured = error(kGemmReference, 0) / error(kGemmReference, 6);
  printf("gain %.0f, expected %.0f\n", measured, gain);
  EXPECT_GT(measured, gain / 2);
  EXPECT_LT(measured, gain * 2);
}

TEST(GemmLlmInt8, IsForOutliersOnly) {
  const machine::Capabilities caps = machine::capabilities();
  const tensor::Weight w = weight(8, 64, 1);
  const LinearProblem plain = problem_of(w, {.type = tensor::ActivationType::kS8}, false);
  EXPECT_NE(kGemmLlmInt8Avx2.can_implement(plain, caps).reason.find("outliers"), std::string::npos);
  const LinearProblem floats = problem_of(w, {.type = tensor::ActivationType::kE4M3, .outlier_threshold = 6}, false);
  EXPECT_FALSE(kGemmLlmInt8Avx2.can_implement(floats, caps).ok);
}

}  // namespace
}  // namespace tare::kernels
