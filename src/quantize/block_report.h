#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "quantize/pipeline.h"

namespace tare::quantize {

/// What a block added to the outcome, as its line in the journal; numbers come back bit for bit.
json::object block_report(std::span<const MatrixReport> matrices, std::span<const TransformReport> transforms,
                          std::span<const std::string> substitutions);
/// Appends it to an outcome. Errors: kInvalidInput.
Status read_block_report(const json::object& report, Outcome& outcome);

}  // namespace tare::quantize
