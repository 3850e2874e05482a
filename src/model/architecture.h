#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/rope.h"

namespace tare::model {

enum class MlpActivation { kSilu, kGeluTanh, kGelu };
enum class QkNorm {
  kNone,
  kPerHead,  // RMSNorm over the channels of each head (Qwen3, Gemma 3)
  kFull,     // RMSNorm over all heads together (OLMo 2)
};

/// What differs between the layers of one model.
struct LayerPlan {
  int64_t window = 0;  // sliding window in tokens, 0 = full attention
  int rope = 0;        // index into Architecture::ropes, -1 = no position embedding (SmolLM3)
};

/// A decoder-only transformer as data: everything the forward pass needs to know of a model family. A family file fills
/// one from a config (families/*.cpp); the transformer runs it without knowing any family.
///
/// Norm names are the tensor names inside a layer; an empty name means that there is no such norm:
///   h += residual_multiplier * attention_norm_out(attention(attention_norm_in(h)))
///   h += residual_multiplier * mlp_norm_out(mlp(mlp_norm_in(h)))
struct Architecture {
  std::string family;
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;

  float norm_eps = 1e-6f;
  bool norm_plus_one = false;  // norms multiply by (1 + w) (Gemma)
  std::string attention_norm_in = "input_layernorm";
  std::string attention_norm_out;
  std::string mlp_norm_in = "post_attention_layernorm";
  std::string mlp_norm_out;

  MlpActivation activation = MlpActivation::kSilu;
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false, mlp_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool fused_qkv = false;      // one qkv_proj on disk (Phi-3)
  bool fused_gate_up = false;  // one gate_up_proj on disk (Phi-3)
  bool tied_head = false;      // as the config says; the file decides

  float attention_scale = 0;  // multiplies q.k
  float attention_soft_cap = 0;
  float logit_soft_cap = 0;
  float embedding_multiplier = 1;
  float residual_multiplier = 1;
  float logits_divisor = 1;

  std::vector<RopeSpec> ropes;
  std::vector<LayerPlan> plan;  // [layers]

  std::vector<std::string> notes;  // what the config said twice, or what was decided, for the report

  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
};

/// One model family: which configs are its own, and how to read them.
struct Family {
  std::string_view name;
  std::vector<std::string_view> model_types;  // config.model_type
  Result<Architecture> (*describe)(const json::object& config);
};

/// All families, in the order of the table in families/registry.cpp.
const std::vector<Family>& families();

/// Reads config.json (with `text_config` nested or not). Errors: unknown model_type (named, with the list),
/// contradictions, missing or impossible sizes.
Result<Architecture> describe_architecture(const json::object& config);

}  // namespace tare::model
