#include "model/step_profile.h"

namespace tare::model {

std::string_view step_op_name(StepOp op) {
  constexpr std::string_view kNames[kStepOps] = {
      "positions",
      "embedding",
      "input of qkv",
      "qkv",
      "rope and head norms",
      "store keys and values",
      "attention",
      "input of o",
      "o",
      "add attention",
      "input of gate, up",
      "gate, up",
      "input of down",
      "down",
      "add mlp",
      "input of head",
      "head",
      "logits",
      "pass",
  };
  return kNames[static_cast<size_t>(op)];
}

}  // namespace tare::model
