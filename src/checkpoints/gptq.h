#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// GPTQ: 2, 3, 4 and 8 bits in v1 and v2 form, 2..8 bits in planar form (docs/formats.md 1).
CheckpointFormat gptq_format();

}  // namespace tare::checkpoints
