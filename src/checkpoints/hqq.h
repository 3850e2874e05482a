#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// HQQ in the form transformers saves (docs/formats.md 8.5).
CheckpointFormat hqq_format();
CheckpointWriter hqq_writer();

}  // namespace tare::checkpoints
