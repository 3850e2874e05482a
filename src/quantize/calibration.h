#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/result.h"
#include "machine/isa.h"
#include "model/architecture.h"
#include "quantize/hessian.h"
#include "tensor/model_weights.h"

namespace tare::quantize {

/// Token lists that calibration runs, each from an empty context.
struct CalibrationData {
  std::vector<std::vector<int32_t>> sequences;
  int64_t tokens = 0;
};

/// The first `samples` windows of `length` tokens, without overlap. Errors: fewer tokens than one window.
Result<CalibrationData> calibration_windows(const std::vector<int32_t>& tokens, int64_t samples, int64_t length);

/// The Gram of what each matrix of the layers reads, by module name; q, k, v share one, gate and up another.
using GramTable = std::map<std::string, std::shared_ptr<const Gram>>;

/// Runs the unquantized model over the data and sums up all inputs.
/// Errors: no tokens; kDoesNotFit (all Grams stand in memory together); kInterrupted; whatever loading says.
Result<GramTable> collect_grams(const tensor::ModelWeights& source, const model::Architecture& arch,
                                const CalibrationData& data, Products& products, MemoryBudget* budget,
                                const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace tare::quantize
