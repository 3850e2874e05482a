#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "eval/gate.h"
#include "quantize/recipe.h"

namespace tare::cli {

/// Flags about judging a result.
struct GateFlags {
  std::string limits;     // --gate: empty = the default of the bit width; "off"
  std::string text_file;  // --gate-text: empty = the built-in text
};
void declare_gate(CLI::App& app, GateFlags& flags);

/// What the gate needs, checked and tokenized before the work begins.
struct GatePlan {
  eval::GateLimits limits;
  std::vector<int32_t> tokens;
  eval::Protocol protocol;
};
/// Nothing when the gate is off. Errors: limits that cannot be read; no tokenizer; a text shorter than one window.
Result<std::optional<GatePlan>> plan_gate(const GateFlags& flags, const std::string& source, int64_t max_positions,
                                          int weight_bits);

/// Opens the source and the result and compares them. Errors: those of opening, e.g. both do not fit --memory.
Result<eval::GateVerdict> run_gate(Context& context, const GatePlan& plan, const std::string& source,
                                   const std::string& result);

}  // namespace tare::cli
