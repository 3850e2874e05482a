#include "model/activation_policy.h"

#include <fmt/format.h>

namespace tare::model {

tensor::ActivationSpec runtime_activation(const std::variant<tensor::DType, tensor::QuantSpec>& form,
                                          const tensor::ActivationSpec& stored, const ActivationPolicy& policy) {
  const auto* spec = std::get_if<tensor::QuantSpec>(&form);
  const bool integer_codes = spec && (spec->kind == tensor::CodeKind::kUint || spec->kind == tensor::CodeKind::kInt);
  if (!policy.fp8 && stored.type == tensor::ActivationType::kE4M3) return {};
  if (policy.int8 && integer_codes && stored.type == tensor::ActivationType::kNone) {
    return {.type = tensor::ActivationType::kS8};
  }
  return stored;
}

std::string activation_note(const tensor::ModelWeights& weights, const ActivationPolicy& policy) {
  if (policy.fp8) return {};
  int64_t left = 0;
  for (const std::string& name : weights.names()) {
    left += weights.find(name)->activation.type == tensor::ActivationType::kE4M3 ? 1 : 0;
  }
  if (left == 0) return {};
  return fmt::format(
      "e4m3 activations of {} matrices are left in f32 (W8A16): this CPU has no FP8 units, so rounding them costs "
      "quality and gains no speed; --activations fp8 rounds them as the checkpoint says",
      left);
}

}  // namespace tare::model
