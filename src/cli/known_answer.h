#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cli/command.h"

namespace tare::cli {

/// What a checkpoint answers on a few tokens, written into its manifest when it is saved: {ids, nll_mean, tolerance},
/// or {why} when the model cannot be run here (an unknown architecture, too little memory). Cache in f32.
/// Errors: kInterrupted, so that a stopped command saves nothing that a finished one would not.
Result<json::object> known_answer(Context& context, const std::string& folder);

/// Runs the tokens again. Nothing: the answer is the stored one, or none is stored; else what is wrong.
/// Errors: the model cannot be run.
Result<std::optional<std::string>> check_known_answer(Context& context, const std::string& folder);

}  // namespace tare::cli
