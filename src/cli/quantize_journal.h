#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cli/command.h"
#include "cli/quantize_calibration.h"
#include "cli/quantize_flags.h"
#include "quantize/pipeline.h"

namespace tare::cli {

/// The folder of the journal beside a result.
std::string journal_of(std::string out);

/// Removes half-written folders of runs that were killed; a run that lives keeps its own.
void remove_leftovers(std::string out);

/// Everything that decides the bytes of the result: version, model, data, settings. plan: the text of --plan, or empty.
Result<json::object> fingerprint(const QuantizeFlags& flags, const quantize::PipelineOptions& options,
                                 const CalibrationInput& calibration, const std::string& plan, const Context& context);

/// What a plan was made from: the model, and the hash of the calibration data if there is any.
Result<json::object> plan_identity(const std::string& model, const std::string& data);

}  // namespace tare::cli
