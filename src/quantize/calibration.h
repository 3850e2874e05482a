#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace tare::quantize {

/// Token lists that calibration runs, each from an empty context.
struct CalibrationData {
  std::vector<std::vector<int32_t>> sequences;
  int64_t tokens = 0;
};

/// The first `samples` windows of `length` tokens, without overlap. Errors: fewer tokens than one window.
Result<CalibrationData> calibration_windows(const std::vector<int32_t>& tokens, int64_t samples, int64_t length);

}  // namespace tare::quantize
