#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// NVIDIA ModelOpt: FP8 and NVFP4 (docs/formats.md 8.3, 8.4).
CheckpointFormat modelopt_format();
CheckpointFormat nvfp4_format();

}  // namespace tare::checkpoints
