#pragma once

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// AMD Quark: fp8 and int8 (docs/formats.md 8.12).
CheckpointFormat quark_format();

}  // namespace tare::checkpoints
