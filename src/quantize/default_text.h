#pragma once

#include <string_view>

namespace tare::quantize {

/// What calibrated methods run the model on when no other text is given: share/text/calibration.txt, English prose.
std::string_view default_calibration_text();

}  // namespace tare::quantize
