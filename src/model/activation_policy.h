#pragma once

#include <string>
#include <variant>

#include "tensor/model_weights.h"

namespace tare::model {

/// Where a run leaves what the checkpoint says of activations.
struct ActivationPolicy {
  bool int8 = false;  // weight-only integer formats may use 8-bit activations: only when the user said so
  bool fp8 = true;    // e4m3 activations of the checkpoint are rounded to e4m3; false: they stay f32 (W8A16)

  bool operator==(const ActivationPolicy&) const = default;
};

tensor::ActivationSpec runtime_activation(const std::variant<tensor::DType, tensor::QuantSpec>& form,
                                          const tensor::ActivationSpec& stored, const ActivationPolicy& policy);

/// What `policy` leaves out of the checkpoint's schemes, for people; empty when nothing.
std::string activation_note(const tensor::ModelWeights& weights, const ActivationPolicy& policy);

}  // namespace tare::model
