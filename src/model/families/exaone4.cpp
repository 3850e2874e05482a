#include "model/families/common.h"

namespace tare::model {

// EXAONE 4: norms only behind attention and MLP, RMSNorm on each query and key head. Models with a sliding window turn
// only the sliding layers and leave the full ones without position embedding; models without one turn all.
Result<Architecture> describe_exaone4(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "exaone4"));
  arch.attention_norm_in.clear();
  arch.attention_norm_out = "post_attention_layernorm";
  arch.mlp_norm_in.clear();
  arch.mlp_norm_out = "post_feedforward_layernorm";
  arch.qk_norm = QkNorm::kPerHead;
  if (!json::find(config, "rms_norm_eps")) arch.norm_eps = 1e-5f;
  const int64_t absent = config.contains("sliding_window") ? 0 : 4096;  // null means none
  if (absent != 0) arch.notes.push_back("config.json names no sliding_window: 4096, the default of the family");
  TARE_ASSIGN(const int64_t window, json::get_int_or(config, "sliding_window", absent, "config.json"));
  if (window > 0 && !json::find(config, "layer_types")) {
    // A pattern in letters ("LLLG") comes with layer_types in published configs; alone, get_int_or refuses it.
    TARE_ASSIGN(const int64_t pattern, json::get_int_or(config, "sliding_window_pattern", 4, "config.json"));
    if (pattern <= 0) return invalid_input("'sliding_window_pattern' is out of range", {.where = "config.json"});
    for (size_t i = 0; i < arch.plan.size(); ++i) {
      arch.plan[i].window = (static_cast<int64_t>(i) + 1) % pattern != 0 ? window : 0;
    }
  }
  TARE_TRY(apply_layer_types(config, window, arch));
  if (window > 0) {
    for (LayerPlan& layer : arch.plan) layer.rope = layer.window > 0 ? 0 : -1;
  }
  return arch;
}

}  // namespace tare::model
