#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "quantize/precision.h"

namespace tare::cli {

/// Flags about mixed precision.
struct PrecisionFlags {
  std::string target_bytes;  // --target-bytes: empty = none
  std::optional<double> target_bpw;
  std::string plan;       // --plan: a file
  std::string plan_only;  // --plan-only: where the plan goes

  bool measures() const { return !target_bytes.empty() || target_bpw.has_value(); }
  bool any() const { return measures() || !plan.empty(); }
};
void declare_precision(CLI::App& app, PrecisionFlags& flags);
/// Errors: flags that exclude each other, or that a plan decides already (`said`: the names of those that were given).
Status check_precision(const PrecisionFlags& flags, const std::vector<std::string>& said);
/// The number of --target-bytes, or 0. Errors: no size.
Result<int64_t> target_bytes(const PrecisionFlags& flags);

/// Measures and chooses, with a progress bar. `cached`: a file that holds the plan of an earlier run of the same
/// command, or takes this one; empty: none. identity: what the plan was made from.
Result<quantize::PrecisionPlan> measured_plan(Context& context, quantize::PrecisionRequest request,
                                              json::object identity, const std::string& cached,
                                              std::vector<std::string>& notes);
/// A plan from a file, held against the model.
Result<quantize::PrecisionPlan> plan_from_file(const std::string& file, const quantize::PrecisionRequest& request,
                                               const json::object& identity, ThreadPool& pool,
                                               std::vector<std::string>& notes);

/// Writes a plan that was made and nothing else, and says what it holds.
Status write_plan_only(Context& context, const std::string& file, const quantize::PrecisionPlan& plan,
                       const std::vector<std::string>& notes);

/// "W4.37A16": mean width of the codes, activations, cache.
std::string describe_plan(const quantize::PrecisionPlan& plan, double bits);
/// What documents say of a plan: target_bytes, bytes, divergence, and how many matrices have each form.
json::object plan_json(const quantize::PrecisionPlan& plan);

}  // namespace tare::cli
