#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// Plain safetensors: f32, f16 and bf16 weights without quantization.
CheckpointFormat dense_format();

}  // namespace tare::checkpoints
