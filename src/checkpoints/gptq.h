#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// GPTQ: 2, 3, 4 and 8 bits in v1 and v2 form, 2..8 bits in planar form (docs/formats.md 1).
CheckpointFormat gptq_format();
CheckpointWriter gptq_writer();
CheckpointWriter gptq_v2_writer();
CheckpointWriter gptq_planar_writer();

}  // namespace tare::checkpoints
