#include "model/families/common.h"

namespace tare::model {

// Llama 2, 3, 3.1, 3.2, TinyLlama, Yi, SmolLM2: pre-norms, SwiGLU, optional biases.
Result<Architecture> describe_llama(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "llama"));
  TARE_ASSIGN(const bool attention_bias, json::get_bool_or(config, "attention_bias", false, "config.json"));
  arch.q_bias = arch.k_bias = arch.v_bias = arch.o_bias = attention_bias;
  TARE_ASSIGN(arch.mlp_bias, json::get_bool_or(config, "mlp_bias", false, "config.json"));
  return arch;
}

}  // namespace tare::model
