#include "quantize/calibration.h"

#include <fmt/format.h>

#include <algorithm>

namespace tare::quantize {

Result<CalibrationData> calibration_windows(const std::vector<int32_t>& tokens, int64_t samples, int64_t length) {
  if (samples < 1 || length < 1) {
    return invalid_input("calibration needs tokens", {.where = "--samples, --sequence-length"});
  }
  const int64_t windows = std::min(samples, static_cast<int64_t>(tokens.size()) / length);
  if (windows == 0) {
    return invalid_input("calibration data is shorter than one window",
                         {.where = "--calibration",
                          .expected = fmt::format("at least {} tokens", length),
                          .found = fmt::format("{}", tokens.size()),
                          .hint = "lower --sequence-length or give more data"});
  }
  CalibrationData out{.tokens = windows * length};
  for (int64_t w = 0; w < windows; ++w) {
    out.sequences.emplace_back(tokens.begin() + w * length, tokens.begin() + (w + 1) * length);
  }
  return out;
}

}  // namespace tare::quantize
