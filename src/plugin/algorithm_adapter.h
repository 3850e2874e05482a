#pragma once

#include "checkpoints/format.h"
#include "tare/plugin.h"

namespace tare::plugin {

/// An algorithm as a format that quantizes dense weights at load.
checkpoints::CheckpointFormat adapt_algorithm(const TareAlgorithm& algorithm);

}  // namespace tare::plugin
