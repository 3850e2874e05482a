#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/architecture.h"
#include "tensor/model_weights.h"

namespace tare::model {

/// One tensor that an architecture needs.
struct NeededWeight {
  std::string name;
  tensor::Shape shape;
};

/// A matrix of a layer by its role, with what the file must hold for it.
struct LayerLinear {
  std::string kind;  // "q_proj", "qkv_proj", "down_proj", ...
  std::string name;  // "model.layers.3.self_attn.q_proj"
  int64_t n = 0;
  int64_t k = 0;
  bool bias = false;
};

/// The matrices of a layer in forward order, grouped by what they read: qkv, o, gate_up, down.
struct LayerLinears {
  std::vector<LayerLinear> qkv, o, gate_up, down;
};
LayerLinears layer_linears(const Architecture& arch, int64_t layer);

std::string layer_prefix(int64_t layer);  // "model.layers.3."
std::string norm_name(int64_t layer, const std::string& norm);
inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kFinalNorm = "model.norm.weight";
inline constexpr const char* kHead = "lm_head.weight";

/// All tensors the architecture needs, without the head when the file ties it.
std::vector<NeededWeight> needed_weights(const Architecture& arch, bool tied);

/// Whether the head is the embedding: the file decides. Errors: untied by config and no head in the file.
Result<bool> head_is_tied(const tensor::ModelWeights& weights, const Architecture& arch);

/// needed = found: every needed tensor is there with its shape, and nothing else is, except known leftovers (returned,
/// for the report). Errors list every missing, extra and misshapen name.
Result<std::vector<std::string>> account_weights(const tensor::ModelWeights& weights, const Architecture& arch);

}  // namespace tare::model
