#include <fmt/format.h>

#include <cmath>

#include "kernels/linear.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {

Status self_test(const LinearKernel& kernel, const machine::Capabilities& caps, ThreadPool& pool) {
  if (&kernel == &kGemmReference) return {};
  // One panel and a partial one; an odd and a long batch: each loop of a kernel once. The sweep test does the rest.
  constexpr int64_t n = 20, k = 256;
  const std::vector<tensor::ActivationSpec> activations = sample_activations();
  size_t turn = 0;
  for (const SampleForm& sample : sample_forms()) {
    const tensor::Weight weight = sample.make(sample, n, k, SamplePattern::kRandom, 7);
    ++turn;
    for (size_t a = 0; a < activations.size(); ++a) {
      const tensor::ActivationSpec& activation = activations[a];
      const LinearProblem problem = problem_of(weight, activation, false);
      if (!kernel.can_implement(problem, caps).ok) continue;
      if (kernel.op == "gemm_qdq" && a != turn % activations.size()) continue;  // as in the sweep
      for (const int64_t m : {int64_t{1}, int64_t{9}}) {
        const std::vector<float> x = sample_tokens(m, k, 11);
        const ExpectedProduct expected = expected_product(problem, weight, {}, x, m, pool);
        TARE_ASSIGN(const std::vector<float> y, run_linear(kernel, problem, {&weight, 1}, {}, x, m, caps.isa, pool));
        for (size_t i = 0; i < y.size(); ++i) {
          const bool equal = is_exact(kernel, problem)
                                 ? y[i] == expected.y[i]
                                 : std::fabs(static_cast<double>(y[i]) - expected.y[i]) <= expected.bound[i];
          if (!equal) {
            return internal_error("kernel fails its self-test on this machine",
                                  {.where = fmt::format("{}: {}, activations {}, M = {}, output {}", kernel.name,
                                                        sample.name, describe(activation), m, i),
                                   .expected = fmt::format("{}", expected.y[i]),
                                   .found = fmt::format("{}", y[i])});
          }
        }
      }
    }
  }
  return {};
}

}  // namespace tare::kernels
