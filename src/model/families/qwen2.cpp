#include "model/families/common.h"

namespace tare::model {

// Qwen2, Qwen2.5: biases on q, k and v; a sliding window from layer max_window_layers on, when use_sliding_window says
// so.
Result<Architecture> describe_qwen2(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "qwen2"));
  arch.q_bias = arch.k_bias = arch.v_bias = true;
  TARE_TRY(apply_qwen_window(config, arch));
  return arch;
}

// Qwen3: no biases unless attention_bias says so, RMSNorm on each query and key head.
Result<Architecture> describe_qwen3(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "qwen3"));
  TARE_ASSIGN(const bool attention_bias, json::get_bool_or(config, "attention_bias", false, "config.json"));
  arch.q_bias = arch.k_bias = arch.v_bias = arch.o_bias = attention_bias;
  arch.qk_norm = QkNorm::kPerHead;
  TARE_TRY(apply_qwen_window(config, arch));
  return arch;
}

Status apply_qwen_window(const json::object& config, Architecture& arch) {
  TARE_ASSIGN(const bool use, json::get_bool_or(config, "use_sliding_window", false, "config.json"));
  TARE_ASSIGN(const int64_t window, json::get_int_or(config, "sliding_window", 0, "config.json"));
  TARE_ASSIGN(const int64_t first, json::get_int_or(config, "max_window_layers", arch.layers, "config.json"));
  if (use && window > 0 && !json::find(config, "layer_types")) {
    for (size_t i = 0; i < arch.plan.size(); ++i) arch.plan[i].window = static_cast<int64_t>(i) >= first ? window : 0;
  }
  return apply_layer_types(config, use ? window : 0, arch);
}

}  // namespace tare::model
