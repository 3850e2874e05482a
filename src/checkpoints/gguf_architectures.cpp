#include "checkpoints/gguf_architectures.h"

#include <algorithm>
#include <array>

namespace tare::checkpoints {

namespace {

// Layers that all pre-norm families share.
const std::vector<GgufName> kAttention = {
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
};
const std::vector<GgufName> kQkNorms = {
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
};
const std::vector<GgufName> kMlp = {
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
const std::vector<GgufName> kPreNorms = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
};
// Gemma 2 and 3: a norm before and after each half.
const std::vector<GgufName> kSandwichNorms = {
    {"attn_norm", "input_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};
const std::vector<GgufName> kPostNorms = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};
const std::vector<GgufName> kMixtralExperts = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{e}.w1"},
    {"ffn_down_exps", "block_sparse_moe.experts.{e}.w2"},
    {"ffn_up_exps", "block_sparse_moe.experts.{e}.w3"},
};
const std::vector<GgufName> kQwenExperts = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{e}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{e}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{e}.down_proj"},
};
const std::vector<GgufName> kQwenSharedExpert = {
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

std::vector<GgufName> join(std::initializer_list<const std::vector<GgufName>*> lists) {
  std::vector<GgufName> out;
  for (const auto* list : lists) out.insert(out.end(), list->begin(), list->end());
  return out;
}

Status copy_float(GgufMetadata& metadata, std::string_view key, json::object& config, std::string_view hf) {
  TARE_ASSIGN(const auto value, metadata.find_float(key));
  if (value) config[hf] = *value;
  return {};
}

Status copy_int(GgufMetadata& metadata, std::string_view key, json::object& config, std::string_view hf) {
  TARE_ASSIGN(const auto value, metadata.find_uniform_int(key));
  if (value) config[hf] = *value;
  return {};
}

Status sliding_window(GgufMetadata& metadata, json::object& config) {
  return copy_int(metadata, "attention.sliding_window", config, "sliding_window");
}

// llama.cpp fixes the attention scale of the 27B models by their layer count; the file does not say it.
void gemma_attention_scale(json::object& config, int64_t layers_of_27b) {
  const bool large = config["num_hidden_layers"] == layers_of_27b;
  config["query_pre_attn_scalar"] = large ? config["hidden_size"].as_int64() / config["num_attention_heads"].as_int64()
                                          : config["head_dim"].as_int64();
}

void use_gelu(json::object& config) {
  config.erase("hidden_act");
  config["hidden_activation"] = "gelu_pytorch_tanh";
}

Status configure_gemma(GgufMetadata&, json::object& config) {
  use_gelu(config);
  return {};
}

Status configure_gemma2(GgufMetadata& metadata, json::object& config) {
  use_gelu(config);
  TARE_TRY(sliding_window(metadata, config));
  TARE_TRY(copy_float(metadata, "attn_logit_softcapping", config, "attn_logit_softcapping"));
  TARE_TRY(copy_float(metadata, "final_logit_softcapping", config, "final_logit_softcapping"));
  gemma_attention_scale(config, 46);
  return {};
}

Status configure_gemma3(GgufMetadata& metadata, json::object& config) {
  use_gelu(config);
  TARE_TRY(sliding_window(metadata, config));
  TARE_TRY(copy_float(metadata, "attn_logit_softcapping", config, "attn_logit_softcapping"));
  TARE_TRY(copy_float(metadata, "final_logit_softcapping", config, "final_logit_softcapping"));
  // Every sixth layer attends to everything, the others to the window with their own base: constants of the family.
  TARE_ASSIGN(const auto pattern, metadata.find_int("attention.sliding_window_pattern"));
  config["sliding_window_pattern"] = pattern.value_or(6);
  TARE_ASSIGN(const auto local_base, metadata.find_float("rope.freq_base_swa"));
  config["rope_local_base_freq"] = local_base.value_or(10000.0);
  gemma_attention_scale(config, 62);
  return {};
}

Status configure_qwen2(GgufMetadata& metadata, json::object& config) {
  metadata.ignore("attention.causal");
  config["use_sliding_window"] = false;
  return {};
}

Status configure_qwen_moe(GgufMetadata& metadata, json::object& config) {
  TARE_TRY(copy_int(metadata, "expert_feed_forward_length", config, "moe_intermediate_size"));
  TARE_TRY(copy_int(metadata, "expert_shared_feed_forward_length", config, "shared_expert_intermediate_size"));
  // llama.cpp normalizes the chosen weights for qwen3moe and not for qwen2moe.
  config["norm_topk_prob"] = config["model_type"] == "qwen3_moe";
  return {};
}

Status configure_granite(GgufMetadata& metadata, json::object& config) {
  TARE_TRY(copy_float(metadata, "logit_scale", config, "logits_scaling"));
  TARE_TRY(copy_float(metadata, "residual_scale", config, "residual_multiplier"));
  TARE_TRY(copy_float(metadata, "embedding_scale", config, "embedding_multiplier"));
  TARE_TRY(copy_float(metadata, "attention.scale", config, "attention_multiplier"));
  return {};
}

Status configure_phi3(GgufMetadata& metadata, json::object& config) {
  TARE_TRY(sliding_window(metadata, config));
  return {};
}

std::vector<GgufArchitecture> table() {
  return {
      {.name = "llama",
       .model_type = "llama",
       .model_class = "LlamaForCausalLM",
       .permuted_qk = true,
       .layer = join({&kPreNorms, &kAttention, &kMlp})},
      {.name = "qwen2",
       .model_type = "qwen2",
       .model_class = "Qwen2ForCausalLM",
       .layer = join({&kPreNorms, &kAttention, &kMlp}),
       .configure = configure_qwen2},
      {.name = "qwen3",
       .model_type = "qwen3",
       .model_class = "Qwen3ForCausalLM",
       .layer = join({&kPreNorms, &kAttention, &kQkNorms, &kMlp}),
       .configure = configure_qwen2},
      {.name = "qwen2moe",
       .model_type = "qwen2_moe",
       .model_class = "Qwen2MoeForCausalLM",
       .layer = join({&kPreNorms, &kAttention, &kQwenExperts, &kQwenSharedExpert}),
       .configure = configure_qwen_moe},
      {.name = "qwen3moe",
       .model_type = "qwen3_moe",
       .model_class = "Qwen3MoeForCausalLM",
       .layer = join({&kPreNorms, &kAttention, &kQkNorms, &kQwenExperts}),
       .configure = configure_qwen_moe},
      {.name = "gemma",
       .model_type = "gemma",
       .model_class = "GemmaForCausalLM",
       .norm_plus_one = true,
       .layer = join({&kPreNorms, &kAttention, &kMlp}),
       .configure = configure_gemma},
      {.name = "gemma2",
       .model_type = "gemma2",
       .model_class = "Gemma2ForCausalLM",
       .norm_plus_one = true,
       .layer = join({&kSandwichNorms, &kAttention, &kMlp}),
       .configure = configure_gemma2},
      {.name = "gemma3",
       .model_type = "gemma3_text",
       .model_class = "Gemma3ForCausalLM",
       .norm_plus_one = true,
       .layer = join({&kSandwichNorms, &kAttention, &kQkNorms, &kMlp}),
       .configure = configure_gemma3},
      {.name = "phi3",
       .model_type = "phi3",
       .model_class = "Phi3ForCausalLM",
       .layer = {{"attn_norm", "input_layernorm"},
                 {"ffn_norm", "post_attention_layernorm"},
                 {"attn_qkv", "self_attn.qkv_proj"},
                 {"attn_output", "self_attn.o_proj"},
                 {"ffn_up", "mlp.gate_up_proj"},
                 {"ffn_down", "mlp.down_proj"}},
       .configure = configure_phi3},
      {.name = "granite",
       .model_type = "granite",
       .model_class = "GraniteForCausalLM",
       .permuted_qk = true,
       .layer = join({&kPreNorms, &kAttention, &kMlp}),
       .configure = configure_granite},
      {.name = "olmo2",
       .model_type = "olmo2",
       .model_class = "Olmo2ForCausalLM",
       .layer = join({&kPostNorms, &kAttention, &kQkNorms, &kMlp})},
  };
}

}  // namespace

Result<GgufArchitecture> gguf_architecture(std::string_view name, bool has_experts) {
  std::string known;
  for (GgufArchitecture& row : table()) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (row.name != name) continue;
    if (has_experts && name == "llama") {
      row.model_type = "mixtral";
      row.model_class = "MixtralForCausalLM";
      row.layer = join({&kPreNorms, &kAttention, &kMixtralExperts});
    }
    return std::move(row);
  }
  return unsupported("GGUF architecture is not supported",
                     {.where = "general.architecture", .expected = known, .found = std::string(name)});
}

}  // namespace tare::checkpoints
