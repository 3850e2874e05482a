#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// HQQ in the form transformers saves (docs/formats.md 8.5).
CheckpointFormat hqq_format();

}  // namespace tare::checkpoints
