#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tare::kernels
