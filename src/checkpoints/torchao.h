#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// torchao in its safetensors form (docs/formats.md 8.13).
CheckpointFormat torchao_format();

}  // namespace tare::checkpoints
