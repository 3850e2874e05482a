#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/linear.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {
namespace {

LinearKernel kernel_row(std::string_view name, machine::Isa isa, bool accepts) {
  LinearKernel row = kGemmReference;
  row.name = name;
  row.isa = isa;
  if (!accepts) {
    row.can_implement = [](const LinearProblem&, const machine::Capabilities&) { return Verdict::no("N is odd"); };
  }
  return row;
}

TEST(Select, FirstThatSaysYesWithTheReasonsOfTheOthers) {
  const LinearKernel top = kernel_row("top", machine::Isa::kAvx512Vnni, true);
  const LinearKernel picky = kernel_row("picky", machine::Isa::kReference, false);
  const LinearKernel plain = kernel_row("plain", machine::Isa::kReference, true);
  const LinearRegistry registry = {&top, &picky, &plain, &kGemmReference};
  const machine::Capabilities caps{.isa = machine::Isa::kAvx2};
  const auto chosen = select_linear(registry, {}, caps);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->kernel, &plain);
  ASSERT_EQ(chosen->rejected.size(), 2u);
  EXPECT_EQ(chosen->rejected[0].kernel, "top");
  EXPECT_NE(chosen->rejected[0].reason.find("avx512vnni"), std::string::npos);
  EXPECT_EQ(chosen->rejected[1].reason, "N is odd");

  EXPECT_EQ(select_linear(registry, {}, caps, "gemm_reference")->kernel, &kGemmReference);
  const auto refused = select_linear(registry, {}, caps, "picky");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("N is odd"), std::string::npos);
  const auto unknown = select_linear(registry, {}, caps, "gem_reference");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::kInvalidInput);
  for (const LinearKernel* kernel : registry) {
    EXPECT_NE(unknown.error().message().find(kernel->name), std::string::npos);
  }
}

TEST(Select, NamesAreUniqueAndTheReferenceTakesEverything) {
  const LinearRegistry registry = builtin_linear_kernels();
  for (size_t i = 0; i < registry.size(); ++i) {
    for (size_t j = i + 1; j < registry.size(); ++j) EXPECT_NE(registry[i]->name, registry[j]->name);
  }
  ASSERT_EQ(registry.back(), &kGemmReference);
  for (const SampleForm& sample : sample_forms()) {
    const tensor::Weight weight = sample.make(sample, 16, 256, SamplePattern::kRandom, 1);
    for (const tensor::ActivationSpec& activation : sample_activations()) {
      EXPECT_TRUE(kGemmReference.can_implement(problem_of(weight, activation, false), {}).ok);
    }
  }
}

TEST(Select, EveryKernelOfThisMachinePassesItsSelfTest) {
  ThreadPool pool(2);
  std::vector<Rejection> dropped;
  const machine::Capabilities caps = machine::capabilities();
  const LinearRegistry all = builtin_linear_kernels();
  const LinearRegistry available = available_linear_kernels(all, caps, pool, &dropped);
  EXPECT_EQ(available.size() + dropped.size(), all.size());
  for (const Rejection& row : dropped) {
    EXPECT_NE(row.reason.find("allowed here"), std::string::npos) << row.kernel << ": " << row.reason;
  }
}

// A kernel that is off by one in the last place must not survive.
TEST(Select, SelfTestDropsAKernelThatComputesWrongly) {
  LinearKernel wrong = kGemmReference;
  wrong.name = "wrong";
  wrong.run = [](const PackedLinear& packed, const Activations& x, float* out, int64_t stride, std::span<std::byte> w,
                 ThreadPool& pool) {
    kGemmReference.run(packed, x, out, stride, w, pool);
    out[0] += std::fabs(out[0]) * 1e-2f;
  };
  ThreadPool pool(1);
  std::vector<Rejection> dropped;
  EXPECT_EQ(available_linear_kernels({&wrong, &kGemmReference}, {}, pool, &dropped), LinearRegistry{&kGemmReference});
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_NE(dropped[0].reason.find("self-test"), std::string::npos);
}

// The error stands in one output of a full panel, or in the last row: both must be seen.
template <int64_t Row>
void off_in_one_row(const PackedLinear& packed, const Activations& x, float* out, int64_t stride,
                    std::span<std::byte> w, ThreadPool& pool) {
  kGemmReference.run(packed, x, out, stride, w, pool);
  out[Row + (x.m - 1) * stride] += std::fabs(out[Row + (x.m - 1) * stride]) * 1e-2f + 1e-3f;
}

TEST(Select, AKernelIsTestedOnceOnFirstUseAndPassedOverWhenItFails) {
  LinearKernel wrong = kGemmReference, off_at_the_end = kGemmReference;
  wrong.name = "wrong";
  wrong.run = off_in_one_row<0>;
  off_at_the_end.name = "off_at_the_end";
  off_at_the_end.run = off_in_one_row<544>;
  const LinearProblem problem{.n = 64, .k = 64, .weight = tensor::DType::kBF16};
  SelfTests tests;
  for (int turn = 0; turn < 2; ++turn) {
    const auto chosen = select_linear({&wrong, &off_at_the_end, &kGemmReference}, problem, {}, {}, tests);
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(chosen->kernel, &kGemmReference);
    ASSERT_EQ(chosen->rejected.size(), 2u);
    EXPECT_NE(chosen->rejected[0].reason.find("self-test"), std::string::npos);
    EXPECT_NE(chosen->rejected[1].reason.find("self-test"), std::string::npos);
    EXPECT_EQ(tests.made(), 3);
  }
  const auto forced = select_linear({&wrong, &kGemmReference}, problem, {}, "wrong", tests);
  ASSERT_FALSE(forced.ok());
  EXPECT_NE(forced.error().message().find("self-test"), std::string::npos);
}

// What runs on this machine passes at the sizes of a first use (every third form: the sweep has them all).
TEST(Select, FirstUseOfEveryKernel) {
  const machine::Capabilities caps = machine::capabilities();
  const std::vector<SampleForm> forms = sample_forms();
  for (size_t form = 0; form < forms.size(); form += 3) {
    const SampleForm& sample = forms[form];
    const tensor::Weight weight =
        sample.make(sample, std::max<int64_t>(sample.n_multiple, 16), 256, SamplePattern::kRandom, 1);
    for (const tensor::ActivationSpec& activation : {tensor::ActivationSpec{}, {.type = tensor::ActivationType::kS8}}) {
      const LinearProblem problem = problem_of(weight, activation, false);
      SelfTests tests;
      for (const LinearKernel* kernel : builtin_linear_kernels()) {
        if (kernel->isa > caps.isa || kernel->only_by_name || !kernel->can_implement(problem, caps).ok) continue;
        const Status& status = tests.check(*kernel, problem, caps);
        EXPECT_TRUE(status.ok()) << status.error().message();
      }
    }
  }
}

}  // namespace
}  // namespace tare::kernels
