#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// quant_method fp8: e4m3 weights scaled per tensor, row or block (docs/formats.md 4).
CheckpointFormat fp8_format();
CheckpointWriter fp8_writer();

}  // namespace tare::checkpoints
