#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/model_weights.h"

namespace tare::checkpoints {

/// One weight whose values are not those of the other model.
struct WeightDifference {
  std::string name;
  std::string what;   // "is missing", "shape [..]", "off by at most 1.2e-3", "inputs ..."
  float max_abs = 0;  // largest difference of two values
};

/// Dequantizes both models, one weight at a time, and compares every value (as f32; the sign of a zero does not count)
/// and what happens to the inputs; the spellings of Mixtral's experts count as one. Empty: they are the same function.
/// progress: before each weight. Errors: whatever loading says.
Result<std::vector<WeightDifference>> compare_weights(const tensor::ModelWeights& left,
                                                      const tensor::ModelWeights& right,
                                                      const std::function<Status(const std::string&)>& progress = {});

}  // namespace tare::checkpoints
