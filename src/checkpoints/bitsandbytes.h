#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// bitsandbytes: NF4 and FP4, single and double quantized, and LLM.int8 (docs/formats.md 5).
CheckpointFormat bitsandbytes_format();
CheckpointWriter bitsandbytes_writer();

}  // namespace tare::checkpoints
