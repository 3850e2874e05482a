#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// QServe's W4A8 files, per channel and per group, and its W8A8 (docs/formats.md 7), as safetensors.
CheckpointFormat qserve_format();
CheckpointWriter qserve_writer();

}  // namespace tare::checkpoints
