#include "model/families/common.h"

namespace tare::model {

// Phi-3, Phi-3.5, Phi-4: q, k, v and gate, up are one matrix each on disk; a part of each head may turn.
Result<Architecture> describe_phi3(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "phi3"));
  arch.fused_qkv = true;
  arch.fused_gate_up = true;
  if (!json::find(config, "rms_norm_eps")) arch.norm_eps = 1e-5f;
  TARE_ASSIGN(const int64_t window, json::get_int_or(config, "sliding_window", 0, "config.json"));
  for (LayerPlan& layer : arch.plan) layer.window = window;
  TARE_TRY(apply_layer_types(config, window, arch));
  return arch;
}

}  // namespace tare::model
