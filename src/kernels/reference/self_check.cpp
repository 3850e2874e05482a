#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

#include "kernels/linear.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {

namespace {

// One panel and a partial one; one token and an odd batch: each loop of a kernel once. The sweep test does the rest.
constexpr int64_t kN = 17, kK = 256, kTokens = 9;

// Problems and what the reference says of them, made once for all kernels.
class SelfTestCases {
 public:
  explicit SelfTestCases(ThreadPool& pool) : pool_(pool) {
    for (const SampleForm& form : forms_) weights_.push_back(form.make(form, kN, kK, SamplePattern::kRandom, 7));
  }

  Status run(const LinearKernel& kernel, const machine::Capabilities& caps) {
    for (size_t form = 0; form < forms_.size(); ++form) {
      for (size_t a = 0; a < activations_.size(); ++a) {
        // Rounding of activations and weight form are independent there: each form takes one rounding in turn.
        if (kernel.op == "gemm_qdq" && a != form % activations_.size()) continue;
        const LinearProblem problem = problem_of(weights_[form], activations_[a], false);
        if (kernel.can_implement(problem, caps).ok) TARE_TRY(run_case(kernel, caps, problem, form, a));
      }
    }
    return {};
  }

 private:
  Status run_case(const LinearKernel& kernel, const machine::Capabilities& caps, const LinearProblem& problem,
                  size_t form, size_t a) {
    auto found = expected_.find({form, a});
    if (found == expected_.end()) {
      ExpectedProduct product = expected_product(problem, weights_[form], {}, x_, kTokens, pool_);
      found = expected_.emplace(std::pair(form, a), std::move(product)).first;
    }
    const ExpectedProduct& expected = found->second;
    for (const int64_t m : {int64_t{1}, kTokens}) {
      TARE_ASSIGN(const std::vector<float> y,
                  run_linear(kernel, problem, {&weights_[form], 1}, {}, x_, m, caps.isa, pool_));
      for (size_t i = 0; i < y.size(); ++i) {
        const bool equal = is_exact(kernel, problem)
                               ? y[i] == expected.y[i]
                               : std::fabs(static_cast<double>(y[i]) - expected.y[i]) <= expected.bound[i];
        if (!equal) {
          return internal_error("kernel fails its self-test on this machine",
                                {.where = fmt::format("{}: {}, activations {}, M = {}, output {}", kernel.name,
                                                      forms_[form].name, describe(activations_[a]), m, i),
                                 .expected = fmt::format("{}", expected.y[i]),
                                 .found = fmt::format("{}", y[i])});
        }
      }
    }
    return {};
  }

  ThreadPool& pool_;
  const std::vector<SampleForm> forms_ = sample_forms();
  const std::vector<tensor::ActivationSpec> activations_ = sample_activations();
  const std::vector<float> x_ = sample_tokens(kTokens, kK, 11);
  std::vector<tensor::Weight> weights_;
  std::map<std::pair<size_t, size_t>, ExpectedProduct> expected_;
};

}  // namespace

Status self_test(const LinearKernel& kernel, const machine::Capabilities& caps, ThreadPool& pool) {
  if (&kernel == &kGemmReference) return {};
  return SelfTestCases(pool).run(kernel, caps);
}

LinearRegistry available_linear_kernels(const LinearRegistry& registry, const machine::Capabilities& caps,
                                        ThreadPool& pool, std::vector<Rejection>* dropped) {
  SelfTestCases cases(pool);
  LinearRegistry available;
  for (const LinearKernel* kernel : registry) {
    std::string reason;
    if (kernel->isa > caps.isa) {
      reason = fmt::format("needs {}, allowed here is {}", machine::isa_name(kernel->isa), machine::isa_name(caps.isa));
    } else if (kernel != &kGemmReference) {
      if (const Status test = cases.run(*kernel, caps); !test.ok()) reason = test.error().message();
    }
    if (reason.empty()) {
      available.push_back(kernel);
    } else if (dropped) {
      dropped->push_back({std::string(kernel->name), std::move(reason)});
    }
  }
  return available;
}

}  // namespace tare::kernels
