#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// FBGEMM_FP8: e4m3 per row, activations per token under a cap (docs/formats.md 8.1).
CheckpointFormat fbgemm_fp8_format();

}  // namespace tare::checkpoints
