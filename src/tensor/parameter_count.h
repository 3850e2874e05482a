#pragma once

#include <cstdint>

#include "base/result.h"
#include "tensor/model_weights.h"

namespace tare::tensor {

/// Numbers in all tensors of a model, whatever form they are stored in; "bits per weight" divides by it.
/// Errors: a shape whose count overflows.
Result<int64_t> parameter_count(const ModelWeights& weights);

}  // namespace tare::tensor
