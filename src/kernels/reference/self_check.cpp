#include <fmt/format.h>

#include <cmath>

#include "kernels/linear.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {

Status self_test(const LinearKernel& kernel, const machine::Capabilities& caps, ThreadPool& pool) {
  if (&kernel == &kGemmReference) return {};
  for (const SampleForm& sample : sample_forms()) {
    constexpr int64_t n = 48, k = 256;
    const tensor::Weight weight = sample.make(sample, n, k, SamplePattern::kRandom, 7);
    for (const tensor::ActivationSpec& activation : sample_activations()) {
      const LinearProblem problem = problem_of(weight, activation, false);
      if (!kernel.can_implement(problem, caps).ok) continue;
      for (const int64_t m : {int64_t{1}, int64_t{3}, int64_t{17}}) {
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
