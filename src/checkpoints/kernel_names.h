#pragma once

#include <vector>

#include "checkpoints/format.h"

namespace tare::checkpoints {

/// Names that are no format of their own: kernels of other engines for gptq and awq checkpoints, and methods that only
/// exist on hardware or in libraries that tare does not drive. Kept so that a command line written for vLLM means the
/// same here, or says why it cannot.
std::vector<CheckpointFormat> kernel_names();

}  // namespace tare::checkpoints
