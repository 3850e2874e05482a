#include "model/families/common.h"

namespace tare::model {

// Granite: Llama with four multipliers.
Result<Architecture> describe_granite(const json::object& config) {
  TARE_ASSIGN(Architecture arch, describe_llama(config));
  arch.family = "granite";
  TARE_ASSIGN(const double embedding, json::get_number_or(config, "embedding_multiplier", 1.0, "config.json"));
  TARE_ASSIGN(const double residual, json::get_number_or(config, "residual_multiplier", 1.0, "config.json"));
  TARE_ASSIGN(const double logits, json::get_number_or(config, "logits_scaling", 1.0, "config.json"));
  TARE_ASSIGN(const double attention, json::get_number_or(config, "attention_multiplier", 1.0, "config.json"));
  if (!(logits > 0)) return invalid_input("'logits_scaling' must be positive", {.where = "config.json"});
  arch.embedding_multiplier = static_cast<float>(embedding);
  arch.residual_multiplier = static_cast<float>(residual);
  arch.logits_divisor = static_cast<float>(logits);
  arch.attention_scale = static_cast<float>(attention);
  return arch;
}

}  // namespace tare::model
