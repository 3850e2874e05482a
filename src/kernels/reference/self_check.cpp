#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/log.h"
#include "kernels/linear.h"
#include "kernels/reference/gemm.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {

namespace {

struct Size {
  int64_t n;
  int64_t k;  // rounded up to what a form asks for
  std::vector<int64_t> m;
};

// A panel, a narrower one and one of few rows; a column block and a group that end early; one token and an odd batch.
// The sweep test does the rest.
const Size kEveryForm = {.n = 83, .k = 275, .m = {1, 9}};
// With one thread 545 rows are wide panels, a narrow one and a single row; loops for one, few and many tokens.
const Size kOneForm = {.n = 545, .k = 147, .m = {1, 6, 29}};

// Problems and what the reference says of them, made once for all kernels.
class SelfTestCases {
 public:
  SelfTestCases(ThreadPool& pool, Size size, std::vector<SampleForm> forms,
                std::vector<tensor::ActivationSpec> activations)
      : pool_(pool), size_(std::move(size)), forms_(std::move(forms)), activations_(std::move(activations)) {
    for (const SampleForm& form : forms_) {
      weights_.push_back(form.make(form, round_up(size_.n, form.n_multiple), round_up(size_.k, form.k_multiple),
                                   SamplePattern::kRandom, 7));
    }
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
    // The reference is slow: it computes the last token of each batch, and those are compared.
    const std::vector<float> x = sample_tokens(size_.m.back(), problem.k, 11);
    auto found = expected_.find({form, a});
    if (found == expected_.end()) {
      std::vector<float> last;
      for (const int64_t m : size_.m)
        last.insert(last.end(), x.begin() + (m - 1) * problem.k, x.begin() + m * problem.k);
      const auto count = static_cast<int64_t>(size_.m.size());
      ExpectedProduct product = expected_product(problem, weights_[form], {}, last, count, pool_);
      found = expected_.emplace(std::pair(form, a), std::move(product)).first;
    }
    const ExpectedProduct& expected = found->second;
    for (size_t turn = 0; turn < size_.m.size(); ++turn) {
      TARE_ASSIGN(const std::vector<float> y,
                  run_linear(kernel, problem, {&weights_[form], 1}, {}, x, size_.m[turn], caps.isa, pool_));
      for (size_t token = 0; token <= turn; ++token) {
        for (int64_t i = 0; i < problem.n; ++i) {
          const auto at = static_cast<size_t>(static_cast<int64_t>(token) * problem.n + i);
          const float found_y = y[static_cast<size_t>((size_.m[token] - 1) * problem.n + i)];
          const double error = std::fabs(static_cast<double>(found_y) - expected.y[at]);
          if (is_exact(kernel, problem) ? found_y == expected.y[at] : error <= expected.bound[at]) continue;
          return internal_error(
              "kernel fails its self-test on this machine",
              {.where = fmt::format("{}: {}, activations {}, M = {}, token {}, output {}", kernel.name,
                                    forms_[form].name, describe(activations_[a]), size_.m[turn], size_.m[token] - 1, i),
               .expected = fmt::format("{}", expected.y[at]),
               .found = fmt::format("{}", found_y)});
        }
      }
    }
    return {};
  }

  ThreadPool& pool_;
  const Size size_;
  const std::vector<SampleForm> forms_;
  const std::vector<tensor::ActivationSpec> activations_;
  std::vector<tensor::Weight> weights_;
  std::map<std::pair<size_t, size_t>, ExpectedProduct> expected_;
};

}  // namespace

Status self_test(const LinearKernel& kernel, const machine::Capabilities& caps, ThreadPool& pool) {
  if (&kernel == &kGemmReference) return {};
  return SelfTestCases(pool, kEveryForm, sample_forms(), sample_activations()).run(kernel, caps);
}

const Status& SelfTests::check(const LinearKernel& kernel, const LinearProblem& problem,
                               const machine::Capabilities& caps) {
  const auto* spec = std::get_if<tensor::QuantSpec>(&problem.weight);
  const std::string form =
      spec ? fmt::format("{} {} {} {} {}", static_cast<int>(spec->kind), spec->bits, static_cast<int>(spec->rule),
                         spec->act_order, static_cast<int>(spec->zero))
           : std::string(tensor::dtype_name(std::get<tensor::DType>(problem.weight)));
  auto [at, fresh] =
      results_.try_emplace(fmt::format("{} {} {}", kernel.name, form, tensor::describe(problem.activation)), Status{});
  if (!fresh || &kernel == &kGemmReference) return at->second;
  // The sample whose weight is of the problem's form, best with groups of its size; else all that the kernel takes.
  std::vector<SampleForm> forms;
  for (const SampleForm& sample : sample_forms()) {
    const LinearProblem small = problem_of(
        sample.make(sample, sample.n_multiple, std::max<int64_t>(sample.k_multiple, 256), SamplePattern::kZero, 1),
        problem.activation, false);
    const auto* other = std::get_if<tensor::QuantSpec>(&small.weight);
    const bool alike = spec ? other && spec->kind == other->kind && spec->bits == other->bits &&
                                  spec->rule == other->rule && spec->act_order == other->act_order &&
                                  spec->zero == other->zero
                            : !other && small.weight == problem.weight;
    if (!alike || !kernel.can_implement(small, caps).ok) continue;
    const bool same_groups = !spec || spec->group_size == other->group_size ||
                             (spec->group_size >= problem.k && other->group_size >= small.k);
    if (forms.empty() || same_groups) forms = {sample};
    if (same_groups) break;
  }
  ThreadPool one(1);
  if (forms.empty()) {
    at->second = SelfTestCases(one, kEveryForm, sample_forms(), {problem.activation}).run(kernel, caps);
  } else {
    at->second = SelfTestCases(one, kOneForm, std::move(forms), {problem.activation}).run(kernel, caps);
  }
  if (!at->second.ok()) log::warn("{}", at->second.error().message());
  return at->second;
}

LinearRegistry available_linear_kernels(const LinearRegistry& registry, const machine::Capabilities& caps,
                                        ThreadPool& pool, std::vector<Rejection>* dropped) {
  SelfTestCases cases(pool, kEveryForm, sample_forms(), sample_activations());
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
