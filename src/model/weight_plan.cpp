#include "model/weight_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace tare::model {

namespace {

// Tensors that a reader hands over and no forward pass reads (what readers leave out themselves is in
// checkpoints::known_leftovers); each end of a name with the reason it may be left.
struct Leftover {
  std::string_view suffix;
  std::string_view reason;
};
constexpr Leftover kLeftovers[] = {
    {".self_attn.k_scale", "scale of an FP8 KV cache"},
    {".self_attn.v_scale", "scale of an FP8 KV cache"},
    {".self_attn.q_scale", "scale of FP8 queries; queries stay f32 here"},
    {".self_attn.prob_scale", "scale of FP8 probabilities; they stay f32 here"},
};

std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::vector<std::string> shown(names.begin(), names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kShown)));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

std::string layer_prefix(int64_t layer) {
  return fmt::format("model.layers.{}.", layer);
}
std::string norm_name(int64_t layer, const std::string& norm) {
  return layer_prefix(layer) + norm + ".weight";
}

LayerLinears layer_linears(const Architecture& arch, int64_t layer) {
  const std::string attention = layer_prefix(layer) + "self_attn.";
  const std::string mlp = layer_prefix(layer) + "mlp.";
  const auto make = [](const std::string& prefix, const char* kind, int64_t n, int64_t k, bool bias) {
    return LayerLinear{kind, prefix + kind, n, k, bias};
  };
  LayerLinears out;
  if (arch.fused_qkv) {
    out.qkv = {make(attention, "qkv_proj", arch.q_size() + 2 * arch.kv_size(), arch.hidden, arch.q_bias)};
  } else {
    out.qkv = {make(attention, "q_proj", arch.q_size(), arch.hidden, arch.q_bias),
               make(attention, "k_proj", arch.kv_size(), arch.hidden, arch.k_bias),
               make(attention, "v_proj", arch.kv_size(), arch.hidden, arch.v_bias)};
  }
  out.o = {make(attention, "o_proj", arch.hidden, arch.q_size(), arch.o_bias)};
  if (arch.fused_gate_up) {
    out.gate_up = {make(mlp, "gate_up_proj", 2 * arch.intermediate, arch.hidden, arch.mlp_bias)};
  } else {
    out.gate_up = {make(mlp, "gate_proj", arch.intermediate, arch.hidden, arch.mlp_bias),
                   make(mlp, "up_proj", arch.intermediate, arch.hidden, arch.mlp_bias)};
  }
  out.down = {make(mlp, "down_proj", arch.hidden, arch.intermediate, arch.mlp_bias)};
  return out;
}

std::vector<NeededWeight> needed_weights(const Architecture& arch, bool tied) {
  std::vector<NeededWeight> out;
  out.push_back({kEmbedding, {arch.vocab_size, arch.hidden}});
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    for (const std::string* norm :
         {&arch.attention_norm_in, &arch.attention_norm_out, &arch.mlp_norm_in, &arch.mlp_norm_out}) {
      if (!norm->empty()) out.push_back({norm_name(layer, *norm), {arch.hidden}});
    }
    if (arch.qk_norm != QkNorm::kNone) {
      const bool full = arch.qk_norm == QkNorm::kFull;
      out.push_back({norm_name(layer, "self_attn.q_norm"), {full ? arch.q_size() : arch.head_dim}});
      out.push_back({norm_name(layer, "self_attn.k_norm"), {full ? arch.kv_size() : arch.head_dim}});
    }
    const LayerLinears linears = layer_linears(arch, layer);
    for (const auto* group : {&linears.qkv, &linears.o, &linears.gate_up, &linears.down}) {
      for (const LayerLinear& linear : *group) {
        out.push_back({linear.name + ".weight", {linear.n, linear.k}});
        if (linear.bias) out.push_back({linear.name + ".bias", {linear.n}});
      }
    }
  }
  out.push_back({kFinalNorm, {arch.hidden}});
  if (!tied) out.push_back({kHead, {arch.vocab_size, arch.hidden}});
  return out;
}

Result<bool> head_is_tied(const tensor::ModelWeights& weights, const Architecture& arch) {
  if (weights.contains(kHead)) return false;
  if (arch.tied_head) return true;
  return invalid_input(
      "output head is missing",
      {.where = kHead, .expected = "the tensor, or tie_word_embeddings true in the config", .found = "neither"});
}

Result<std::vector<std::string>> account_weights(const tensor::ModelWeights& weights, const Architecture& arch) {
  TARE_ASSIGN(const bool tied, head_is_tied(weights, arch));
  std::map<std::string, bool> consumed;
  for (const std::string& name : weights.names()) consumed[name] = false;
  std::vector<std::string> missing, misshapen, extra, leftovers;
  for (const NeededWeight& needed : needed_weights(arch, tied)) {
    const tensor::WeightInfo* info = weights.find(needed.name);
    if (!info) {
      missing.push_back(needed.name);
      continue;
    }
    consumed[needed.name] = true;
    if (info->shape != needed.shape) {
      misshapen.push_back(fmt::format("{} {} instead of {}", needed.name, tensor::shape_text(info->shape),
                                      tensor::shape_text(needed.shape)));
    }
  }
  for (const auto& [name, used] : consumed) {
    if (used) continue;
    const bool known = std::any_of(std::begin(kLeftovers), std::end(kLeftovers),
                                   [&, &key = name](const Leftover& l) { return key.ends_with(l.suffix); });
    (known ? leftovers : extra).push_back(name);
  }
  if (missing.empty() && misshapen.empty() && extra.empty()) return leftovers;
  std::string found;
  if (!missing.empty()) found += fmt::format("missing: {}; ", list_some(missing));
  if (!misshapen.empty()) found += fmt::format("wrong shape: {}; ", list_some(misshapen));
  if (!extra.empty()) found += fmt::format("not part of the model: {}; ", list_some(extra));
  found.resize(found.size() - 2);
  return invalid_input(
      "weights do not match the architecture",
      {.where = arch.family, .expected = "every needed tensor once and nothing else", .found = std::move(found)});
}

}  // namespace tare::model
