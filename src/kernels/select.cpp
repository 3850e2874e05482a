#include <fmt/format.h>

#include "kernels/linear.h"

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

Result<Selection> select_linear(const LinearRegistry& registry, const LinearProblem& problem,
                                const machine::Capabilities& caps, std::string_view forced) {
  Selection selection;
  std::string names;
  for (const LinearKernel* kernel : registry) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel->name);
    if (!forced.empty() && kernel->name != forced) continue;
    Verdict verdict = forced.empty() && kernel->only_by_name ? Verdict::no("runs only when named by --kernel")
                                                             : ask(*kernel, problem, caps);
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

}  // namespace tare::kernels
