#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// AWQ: gemm, gemv and gemv_fast layouts (docs/formats.md 2).
CheckpointFormat awq_format();

}  // namespace tare::checkpoints
