#pragma once

#include <string_view>
#include <vector>

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// All formats, in the order in which they are asked whether a checkpoint is theirs. A value: a plugin's format is
/// appended by the caller.
std::vector<CheckpointFormat> builtin_formats();

/// By name or alias; nullptr when there is none.
const CheckpointFormat* find_format(const std::vector<CheckpointFormat>& formats, std::string_view name);

}  // namespace tare::checkpoints
