#include "model/families/common.h"

namespace tare::model {

// OLMo 2: norms only behind attention and MLP, and one norm over all query (key) heads together.
Result<Architecture> describe_olmo2(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "olmo2"));
  arch.attention_norm_in.clear();
  arch.attention_norm_out = "post_attention_layernorm";
  arch.mlp_norm_in.clear();
  arch.mlp_norm_out = "post_feedforward_layernorm";
  arch.qk_norm = QkNorm::kFull;
  if (!json::find(config, "rms_norm_eps")) arch.norm_eps = 1e-5f;
  TARE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false, "config.json"));
  arch.q_bias = arch.k_bias = arch.v_bias = arch.o_bias = bias;
  return arch;
}

}  // namespace tare::model
