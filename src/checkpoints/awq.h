#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// AWQ: gemm, gemv and gemv_fast layouts (docs/formats.md 2).
CheckpointFormat awq_format();
CheckpointWriter awq_writer();

}  // namespace tare::checkpoints
