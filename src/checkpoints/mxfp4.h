#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// MXFP4 as gpt-oss ships it: experts only (docs/formats.md 8.14).
CheckpointFormat mxfp4_format();

}  // namespace tare::checkpoints
