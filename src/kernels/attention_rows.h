#pragma once

#include "kernels/attention.h"

namespace tare::kernels {

// The rows of the attention registry, one in each folder of kernels.
extern const AttentionKernel kAttentionReference;

}  // namespace tare::kernels
