#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// AQLM: sums of codebook vectors (docs/formats.md 8.11).
CheckpointFormat aqlm_format();

}  // namespace tare::checkpoints
