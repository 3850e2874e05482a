#pragma once

#include "checkpoints/format.h"
#include "tare/plugin.h"

namespace tare::plugin {

/// A plugin's format as a row of the registry.
checkpoints::CheckpointFormat adapt_format(const TareFormat& format);

}  // namespace tare::plugin
