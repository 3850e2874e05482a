#include <fmt/format.h>

#include <cmath>

#include "model/families/common.h"

namespace tare::model {

namespace {

constexpr const char* kWhere = "config.json";

// What Gemma 2 and 3 share: (1 + w) norms before and after each block, scaled embeddings, own query scale.
Result<Architecture> read_gemma(const json::object& config, std::string_view name) {
  TARE_ASSIGN(Architecture arch, read_common(config, name));
  arch.norm_plus_one = true;
  arch.attention_norm_out = "post_attention_layernorm";
  arch.mlp_norm_in = "pre_feedforward_layernorm";
  arch.mlp_norm_out = "post_feedforward_layernorm";
  arch.embedding_multiplier = static_cast<float>(std::sqrt(static_cast<double>(arch.hidden)));
  TARE_ASSIGN(arch.tied_head, json::get_bool_or(config, "tie_word_embeddings", true, kWhere));
  TARE_ASSIGN(const bool bias, json::get_bool_or(config, "attention_bias", false, kWhere));
  arch.q_bias = arch.k_bias = arch.v_bias = arch.o_bias = bias;
  TARE_ASSIGN(const double query_scalar,
              json::get_number_or(config, "query_pre_attn_scalar", static_cast<double>(arch.head_dim), kWhere));
  arch.attention_scale = static_cast<float>(1.0 / std::sqrt(query_scalar));
  TARE_ASSIGN(const double attention_cap, json::get_number_or(config, "attn_logit_softcapping", 0.0, kWhere));
  TARE_ASSIGN(const double logit_cap, json::get_number_or(config, "final_logit_softcapping", 0.0, kWhere));
  arch.attention_soft_cap = static_cast<float>(attention_cap);
  arch.logit_soft_cap = static_cast<float>(logit_cap);
  if (!json::find(config, "hidden_act") && !json::find(config, "hidden_activation")) {
    arch.activation = MlpActivation::kGeluTanh;
  }
  return arch;
}

}  // namespace

Result<Architecture> describe_gemma2(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_gemma(config, "gemma2"));
  TARE_ASSIGN(const int64_t window, json::get_int_or(config, "sliding_window", 4096, kWhere));
  for (size_t i = 0; i < arch.plan.size(); i += 2) arch.plan[i].window = window;
  TARE_TRY(apply_layer_types(config, window, arch));
  return arch;
}

Result<Architecture> describe_gemma3(const json::object& given) {
  // Published configs of the larger models leave out what equals the family's own defaults.
  constexpr std::pair<const char*, int64_t> kDefaults[] = {{"vocab_size", 262208},
                                                           {"num_attention_heads", 8},
                                                           {"num_key_value_heads", 4},
                                                           {"head_dim", 256},
                                                           {"max_position_embeddings", 131072}};
  json::object config = given;
  std::vector<std::string> notes;
  for (const auto& [key, value] : kDefaults) {
    if (json::find(config, key)) continue;
    config[key] = value;
    notes.push_back(fmt::format("config.json names no {}: {}, the default of the family", key, value));
  }
  TARE_ASSIGN(Architecture arch, read_gemma(config, "gemma3"));
  arch.notes.insert(arch.notes.end(), notes.begin(), notes.end());
  arch.qk_norm = QkNorm::kPerHead;
  TARE_ASSIGN(const int64_t window, json::get_int_or(config, "sliding_window", 4096, kWhere));
  TARE_ASSIGN(const int64_t pattern, json::get_int_or(config, "sliding_window_pattern", 6, kWhere));
  if (pattern <= 0) return invalid_input("'sliding_window_pattern' is out of range", {.where = kWhere});
  for (size_t i = 0; i < arch.plan.size(); ++i) {
    arch.plan[i].window = (static_cast<int64_t>(i) + 1) % pattern != 0 ? window : 0;
  }
  TARE_TRY(apply_layer_types(config, window, arch));

  // Full layers turn slowly, sliding ones fast. Old spelling: rope_theta + rope_scaling, and rope_local_base_freq.
  TARE_ASSIGN(const double local_theta, json::get_number_or(config, "rope_local_base_freq", 10000.0, kWhere));
  TARE_ASSIGN(const RopeSpec full, read_config_rope(config, arch, arch.head_dim, 1000000.0, "full_attention"));
  RopeSpec sliding{.theta = local_theta, .rotary_dim = arch.head_dim, .original_context = arch.max_positions};
  if (const json::value* parameters = json::find(config, "rope_parameters");
      parameters && parameters->is_object() && json::find(parameters->get_object(), "sliding_attention")) {
    TARE_ASSIGN(sliding, read_config_rope(config, arch, arch.head_dim, local_theta, "sliding_attention"));
  }
  arch.ropes = {full, sliding};
  for (LayerPlan& layer : arch.plan) layer.rope = layer.window > 0 ? 1 : 0;
  return arch;
}

}  // namespace tare::model
