#include <fmt/format.h>

#include "base/log.h"
#include "kernels/linear.h"
#include "kernels/reference/gemm.h"

namespace tare::kernels {

namespace {

Verdict ask(const LinearKernel& kernel, const LinearProblem& problem, const machine::Capabilities& caps) {
  if (kernel.isa > caps.isa) {
    return Verdict::no(
        fmt::format("needs {}, allowed here is {}", machine::isa_name(kernel.isa), machine::isa_name(caps.isa)));
  }
  return kernel.can_implement(problem, caps);
}

}  // namespace

namespace {

Result<Selection> select(const LinearRegistry& registry, const LinearProblem& problem,
                         const machine::Capabilities& caps, std::string_view forced, SelfTests* tests) {
  Selection selection;
  std::string names;
  for (const LinearKernel* kernel : registry) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel->name);
    if (!forced.empty() && kernel->name != forced) continue;
    Verdict verdict = forced.empty() && kernel->only_by_name ? Verdict::no("runs only when named by --kernel")
                                                             : ask(*kernel, problem, caps);
    if (verdict.ok && tests) {
      if (const Status& test = tests->check(*kernel, problem, caps); !test.ok()) {
        verdict = Verdict::no(test.error().message());
      }
    }
    if (verdict.ok) {
      selection.kernel = kernel;
      return selection;
    }
    selection.rejected.push_back({std::string(kernel->name), std::move(verdict.reason)});
  }
  if (forced.empty()) return unsupported("no kernel takes this matrix");
  if (selection.rejected.empty()) {
    return invalid_input("unknown kernel",
                         {.where = "--kernel", .expected = names, .found = fmt::format("'{}'", forced)});
  }
  return unsupported("the forced kernel refuses this matrix",
                     {.where = fmt::format("--kernel {}", forced), .found = selection.rejected.front().reason});
}

std::string describe(const LinearProblem& problem) {
  const auto* dtype = std::get_if<tensor::DType>(&problem.weight);
  return fmt::format(
      "[{}, {}] {}, activations {}", problem.n, problem.k,
      dtype ? std::string(tensor::dtype_name(*dtype)) : tensor::describe(std::get<tensor::QuantSpec>(problem.weight)),
      tensor::describe(problem.activation));
}

}  // namespace

Result<Selection> select_linear(const LinearRegistry& registry, const LinearProblem& problem,
                                const machine::Capabilities& caps, std::string_view forced) {
  return select(registry, problem, caps, forced, nullptr);
}

Result<Selection> select_linear(const LinearRegistry& registry, const LinearProblem& problem,
                                const machine::Capabilities& caps, std::string_view forced, SelfTests& tests) {
  TARE_ASSIGN(Selection selection, select(registry, problem, caps, forced, &tests));
  if (selection.kernel == &kGemmReference && forced.empty() && caps.isa != machine::Isa::kReference &&
      tests.first_reference()) {
    log::warn("{} runs on the slow reference kernel; `tare explain` tells why for every matrix", describe(problem));
  }
  return selection;
}

}  // namespace tare::kernels
