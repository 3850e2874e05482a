#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/linear.h"
#include "model/activation_policy.h"
#include "model/architecture.h"
#include "tensor/model_weights.h"

namespace tare::model {

/// A matrix as it will be bound, from headers alone: equal neighbours are fused as bind_group fuses them.
struct PlannedLinear {
  std::string name;    // of the first part, "+" the kinds of the others
  std::string weight;  // name of the first part's tensor
  kernels::LinearProblem problem;
  int64_t stored_bytes = 0;
};

/// The matrices of a model in forward order, the head last. Errors: a weight is missing.
Result<std::vector<PlannedLinear>> plan_linears(const tensor::ModelWeights& weights, const Architecture& arch,
                                                const ActivationPolicy& policy);

}  // namespace tare::model
