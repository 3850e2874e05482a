#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// QQQ: 4-bit weights for int8 activations, two levels of scales or one (docs/formats.md 8.6).
CheckpointFormat qqq_format();

}  // namespace tare::checkpoints
