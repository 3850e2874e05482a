#include "kernels/attention.h"

#include <fmt/format.h>

#include "kernels/attention_rows.h"

namespace tare::kernels {

AttentionRegistry builtin_attention_kernels() {
  return {&kAttentionAvx512Vnni, &kAttentionAvx2, &kAttentionReference};
}

Result<AttentionSelection> select_attention(const AttentionRegistry& registry, const AttentionProblem& problem,
                                            const machine::Capabilities& caps, std::string_view forced) {
  const auto verdict = [&](const AttentionKernel& kernel) {
    if (kernel.isa > caps.isa) return Verdict::no(fmt::format("needs {}", machine::isa_name(kernel.isa)));
    return kernel.can_implement(problem, caps);
  };
  AttentionSelection out;
  std::string names;
  for (const AttentionKernel* kernel : registry) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel->name);
    if (!forced.empty() && kernel->name != forced) continue;
    Verdict v = verdict(*kernel);
    if (v.ok) {
      out.kernel = kernel;
      return out;
    }
    if (!forced.empty()) {
      return unsupported("the forced kernel refuses", {.where = std::string(forced), .found = std::move(v.reason)});
    }
    out.rejected.push_back({std::string(kernel->name), std::move(v.reason)});
  }
  if (!forced.empty()) {
    return invalid_input("unknown kernel",
                         {.where = "--kernel", .expected = names, .found = fmt::format("'{}'", forced)});
  }
  return unsupported("no attention kernel takes this problem", {.expected = names});
}

}  // namespace tare::kernels
