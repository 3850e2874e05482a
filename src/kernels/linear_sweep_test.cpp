// The one sweep: every registered kernel, on every form it claims, over shapes with all tails, against the reference;
// bitwise independence of M, of the neighbours and of the number of threads (P1); sentinels around outputs; NaN, inf
// and zero rows. It prints what ran and what was skipped and why, and fails when a kernel this machine can run had
// no case.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "kernels/activations.h"
#include "kernels/linear.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {
namespace {

using tensor::ActivationSpec;
using tensor::Weight;

constexpr float kSentinel = -12345.678f;

struct Size {
  int64_t n;
  int64_t k;
  int64_t m;
};
// Around tiles of 16, 32, 64 and 128; odd; one long; one wide.
constexpr Size kSizes[] = {{1, 1, 3},    {16, 64, 17},  {17, 31, 19},   {96, 344, 9},
                           {48, 576, 5}, {65, 1031, 6}, {130, 256, 33}, {7, 1536, 64}};
constexpr Size kLargeSizes[] = {{5, 11008, 7}, {1031, 512, 4}, {1040, 1024, 10}};

bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

// One kernel with one packed weight.
class Subject {
 public:
  Subject(const LinearKernel& kernel, const LinearProblem& problem, std::unique_ptr<PackedLinear> packed,
          machine::Isa isa)
      : kernel_(kernel), problem_(problem), packed_(std::move(packed)), isa_(isa) {}

  // Runs tokens [first, first + m) of x; checks that nothing outside [m, n] is touched.
  std::vector<float> run(const std::vector<float>& x, int64_t first, int64_t m, ThreadPool& pool) const {
    const ActivationForm form = kernel_.form(problem_);
    const int64_t k = problem_.k, stride = problem_.n + 3;
    std::vector<std::byte> storage(static_cast<size_t>(activation_bytes(form, m, k) + 64));
    Activations tokens = f32_activations(x.data() + first * k, m, k, k);
    if (form.dtype != tensor::DType::kF32) {
      const auto start = static_cast<size_t>(-reinterpret_cast<uintptr_t>(storage.data()) & 63);
      const ActivationStorage carved = carve_activations(form, m, k, std::span(storage).subspan(start));
      write_activations(carved, x.data() + first * k, k, 0, m, isa_);
      tokens = carved.view();
    }
    const int64_t scratch = kernel_.workspace_bytes(problem_, m, pool.size());
    std::vector<std::byte> workspace(static_cast<size_t>(scratch + 64 + 16), std::byte{0xa5});
    const auto start = static_cast<size_t>(-reinterpret_cast<uintptr_t>(workspace.data()) & 63);
    std::vector<float> out(static_cast<size_t>((m + 2) * stride), kSentinel);
    kernel_.run(*packed_, tokens, out.data() + stride, stride,
                std::span(workspace).subspan(start, static_cast<size_t>(scratch)), pool);
    for (size_t i = start + static_cast<size_t>(scratch); i < workspace.size(); ++i) {
      EXPECT_EQ(workspace[i], std::byte{0xa5}) << kernel_.name << " wrote behind its workspace";
    }
    std::vector<float> y(static_cast<size_t>(m * problem_.n));
    for (int64_t row = -1; row <= m; ++row) {
      const float* values = out.data() + (row + 1) * stride;
      const bool inside = row >= 0 && row < m;
      for (int64_t i = inside ? problem_.n : 0; i < stride; ++i) {
        EXPECT_EQ(values[i], kSentinel) << kernel_.name << " wrote outside its output, row " << row << " column " << i;
      }
      if (inside) std::copy(values, values + problem_.n, y.begin() + row * problem_.n);
    }
    return y;
  }

 private:
  const LinearKernel& kernel_;
  LinearProblem problem_;
  std::unique_ptr<PackedLinear> packed_;
  machine::Isa isa_;
};

struct Counts {
  int64_t cases = 0;
  int64_t refused = 0;
};

class Sweep {
 public:
  Sweep() {
    // Every level this machine has: a kernel may ask for more than its own level offers, never less.
    for (const LinearKernel* kernel : builtin_linear_kernels()) {
      if (kernel == &kGemmReference) continue;
      if (kernel->isa > caps_.isa) {
        skipped_[std::string(kernel->name)] = fmt::format("this CPU has no {}", machine::isa_name(kernel->isa));
      } else {
        kernels_.push_back(kernel);
        counts_[kernel->name];
      }
    }
  }

  void run_form(const SampleForm& sample, const Size& size, SamplePattern pattern,
                const std::vector<ActivationSpec>& activations = sample_activations()) {
    if (size.n % sample.n_multiple != 0 || size.k % sample.k_multiple != 0) return;
    const Weight weight = sample.make(sample, size.n, size.k, pattern, static_cast<uint64_t>(size.n * 131 + size.k));
    int index = 0;
    ++turn_;
    for (const ActivationSpec& activation : activations) {
      const bool with_bias = (++index + size.n) % 2 == 0;
      const LinearProblem problem = problem_of(weight, activation, with_bias);
      std::vector<const LinearKernel*> takers;
      for (const LinearKernel* kernel : kernels_) {
        // Rounding of activations and weight form are independent there, and the product is that of gemm_wna16: each
        // form takes one rounding in turn.
        if (kernel->op == "gemm_qdq" && index % 13 != turn_ % 13) continue;
        if (kernel->can_implement(problem, caps_).ok) {
          takers.push_back(kernel);
        } else {
          ++counts_[kernel->name].refused;
        }
      }
      if (takers.empty()) continue;
      std::vector<float> bias;
      if (with_bias) bias = sample_tokens(1, size.n, 3);
      std::vector<float> x = sample_tokens(size.m, size.k, 5);
      if (size.m > 4) std::fill_n(x.begin() + 2 * size.k, size.k, 0.0f);  // a zero row
      const ExpectedProduct expected = expected_product(problem, weight, bias, x, size.m, pools_[1]);
      for (const LinearKernel* kernel : takers) {
        SCOPED_TRACE(fmt::format("{} on {}, N {} K {} M {}, activations {}, pattern {}", kernel->name, sample.name,
                                 size.n, size.k, size.m, describe(activation), static_cast<int>(pattern)));
        check(*kernel, problem, weight, bias, x, size, expected);
        ++counts_[kernel->name].cases;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  // Prints the account; fails for a kernel without a case.
  void report() const {
    for (const auto& [name, count] : counts_) {
      fmt::print("[ ran     ] {}: {} cases, {} refused by can_implement\n", name, count.cases, count.refused);
      EXPECT_GT(count.cases, 0) << name << " ran no case on a machine that has its instructions";
    }
    for (const auto& [name, reason] : skipped_) fmt::print("[ skipped ] {}: {}\n", name, reason);
  }

 private:
  void check(const LinearKernel& kernel, const LinearProblem& problem, const Weight& weight,
             const std::vector<float>& bias, std::vector<float> x, const Size& size, const ExpectedProduct& expected) {
    // Two row blocks that together are the matrix must give what the matrix gives.
    std::vector<Weight> parts = {weight};
    auto packed = kernel.prepack(problem, parts, bias, pools_[1]);
    ASSERT_TRUE(packed.ok()) << packed.error().message();
    const Subject subject(kernel, problem, std::move(*packed), caps_.isa);
    const int64_t n = size.n, m = size.m;
    const std::vector<float> y = subject.run(x, 0, m, pools_[1]);
    const bool exact = is_exact(kernel, problem);
    for (size_t i = 0; i < y.size(); ++i) {
      if (exact) {
        ASSERT_EQ(y[i], expected.y[i]) << "token " << i / static_cast<size_t>(n) << " output "
                                       << i % static_cast<size_t>(n);
      } else {
        ASSERT_NEAR(y[i], expected.y[i], expected.bound[i])
            << "token " << i / static_cast<size_t>(n) << " output " << i % static_cast<size_t>(n);
      }
    }
    // P1: any M, any neighbours, any number of threads.
    for (int64_t count = 1; count <= m; count = count < 17 ? count + 1 : count * 2) {
      const int64_t first = (m - count) / 2;
      const std::vector<float> part = subject.run(x, first, count, pools_[count == 2 ? 2 : count == 7 ? 1 : 0]);
      ASSERT_TRUE(same_bits(part.data(), y.data() + first * n, count * n)) << "differs at M = " << count;
    }
    // A poisoned token stays alone.
    if (m >= 4) {
      x[static_cast<size_t>(size.k + size.k / 2)] = std::numeric_limits<float>::quiet_NaN();
      x[static_cast<size_t>(3 * size.k + size.k - 1)] = std::numeric_limits<float>::infinity();
      const std::vector<float> poisoned = subject.run(x, 0, m, pools_[0]);
      for (int64_t token = 0; token < m; ++token) {
        if (token != 1 && token != 3) {
          ASSERT_TRUE(same_bits(poisoned.data() + token * n, y.data() + token * n, n)) << "token " << token;
        } else {
          for (int64_t i = 0; i < n; ++i) {
            ASSERT_FALSE(std::isfinite(poisoned[static_cast<size_t>(token * n + i)])) << "token " << token;
          }
        }
      }
    }
  }

  int turn_ = 0;
  machine::Capabilities caps_ = machine::capabilities();
  std::vector<const LinearKernel*> kernels_;
  std::map<std::string_view, Counts> counts_;
  std::map<std::string, std::string> skipped_;
  ThreadPool pools_[3] = {ThreadPool(1), ThreadPool(2), ThreadPool(3)};
};

TEST(LinearSweep, EveryKernelOnEveryFormAndShape) {
  Sweep sweep;
  for (const SampleForm& sample : sample_forms()) {
    for (const Size& size : kSizes) sweep.run_form(sample, size, SamplePattern::kRandom);
    for (const SamplePattern pattern : {SamplePattern::kLargest, SamplePattern::kSmallest, SamplePattern::kZero}) {
      sweep.run_form(sample, {33, 512, 5}, pattern);
    }
    if (HasFailure()) break;
  }
  sweep.report();
}

// Few forms: the loops over long K and many rows are the same for all.
TEST(LinearSweep, LargeShapes) {
  Sweep sweep;
  const std::vector<ActivationSpec> activations = {
      {}, {.type = tensor::ActivationType::kS8}, {.type = tensor::ActivationType::kE4M3}};
  for (const SampleForm& sample : sample_forms()) {
    const bool chosen = sample.name == "bf16" || sample.name == "qoq-g128" || sample.name == "qoq-channel" ||
                        sample.name == "w8-channel" || sample.name == "gptq-u4-g128" || sample.name == "fp8-block";
    if (!chosen) continue;
    for (const Size& size : kLargeSizes) sweep.run_form(sample, size, SamplePattern::kRandom, activations);
    sweep.run_form(sample, {16, 11008, 2}, SamplePattern::kLargest, activations);
    sweep.run_form(sample, {16, 11008, 2}, SamplePattern::kSmallest, activations);
  }
}

// Row blocks that together make one matrix (fused q, k, v) give what the matrix gives.
TEST(LinearSweep, PartsMakeTheWhole) {
  const machine::Capabilities caps = machine::capabilities();
  ThreadPool pool(2);
  for (const SampleForm& sample : sample_forms()) {
    const int64_t n = 80, k = 256, cut = sample.group_n == 128 || sample.group_n == 0 ? 0 : 23;
    const Weight whole = sample.make(sample, n, k, SamplePattern::kRandom, 9);
    std::vector<Weight> parts;
    if (const auto* dense = std::get_if<tensor::Tensor>(&whole)) {
      parts = {dense->rows(0, cut), dense->rows(cut, n)};
    } else {
      const auto& quantized = std::get<tensor::QuantizedTensor>(whole);
      parts = {*quantized.rows(0, cut), *quantized.rows(cut, n)};
    }
    const std::vector<float> bias = sample_tokens(1, n, 2);
    const std::vector<float> x = sample_tokens(3, k, 4);
    for (const ActivationSpec& activation : sample_activations()) {
      const LinearProblem problem = problem_of(whole, activation, true);
      for (const LinearKernel* kernel : builtin_linear_kernels()) {
        if (kernel->isa > caps.isa || !kernel->can_implement(problem, caps).ok) continue;
        SCOPED_TRACE(fmt::format("{} on {}", kernel->name, sample.name));
        const auto one = run_linear(*kernel, problem, {&whole, 1}, bias, x, 3, caps.isa, pool);
        const auto two = run_linear(*kernel, problem, parts, bias, x, 3, caps.isa, pool);
        ASSERT_TRUE(one.ok()) << one.error().message();
        ASSERT_TRUE(two.ok()) << two.error().message();
        ASSERT_TRUE(same_bits(one->data(), two->data(), 3 * n));
      }
    }
  }
}

}  // namespace
}  // namespace tare::kernels
