#include "runtime/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/weight_plan.h"

namespace tare::runtime {

namespace {

Result<std::vector<float>> take(tensor::ModelWeights& weights, const std::string& name) {
  if (!weights.contains(name)) return std::vector<float>();
  TARE_ASSIGN(const tensor::Weight weight, weights.load(name));
  const tensor::Tensor* dense = std::get_if<tensor::Tensor>(&weight);
  if (!dense) return invalid_input("a KV scale is quantized", {.where = name});
  TARE_ASSIGN(std::vector<float> values, tensor::to_f32(*dense));
  weights.erase(name);
  return values;
}

Status check_heads(const std::string& name, const std::vector<float>& scale, int64_t kv_heads) {
  const auto count = static_cast<int64_t>(scale.size());
  if (count <= 1 || count == kv_heads) return {};
  return invalid_input(
      "a KV scale fits no head count",
      {.where = name, .expected = fmt::format("1 or {} numbers", kv_heads), .found = fmt::format("{}", count)});
}

}  // namespace

Result<CheckpointKvScales> take_kv_scales(tensor::ModelWeights& weights, const model::Architecture& arch) {
  CheckpointKvScales out;
  out.layers.resize(static_cast<size_t>(arch.layers));
  int64_t complete = 0, present = 0, unused = 0;
  std::vector<float> all;
  for (int64_t i = 0; i < arch.layers; ++i) {
    const std::string prefix = model::layer_prefix(i) + "self_attn.";
    kvcache::KvLayerScales& layer = out.layers[static_cast<size_t>(i)];
    TARE_ASSIGN(layer.k, take(weights, prefix + "k_scale"));
    TARE_ASSIGN(layer.v, take(weights, prefix + "v_scale"));
    TARE_TRY(check_heads(prefix + "k_scale", layer.k, arch.kv_heads));
    TARE_TRY(check_heads(prefix + "v_scale", layer.v, arch.kv_heads));
    present += !layer.k.empty() || !layer.v.empty();
    complete += !layer.k.empty() && !layer.v.empty();
    all.insert(all.end(), layer.k.begin(), layer.k.end());
    all.insert(all.end(), layer.v.begin(), layer.v.end());
    for (const char* other : {"q_scale", "prob_scale"}) {
      TARE_ASSIGN(const std::vector<float> values, take(weights, prefix + other));
      unused += !values.empty();
    }
  }
  if (unused > 0) {
    out.notes.push_back(
        fmt::format("{} scales of FP8 queries and probabilities are read and not applied: both stay f32 here", unused));
  }
  if (present == 0) {
    out.layers.clear();
    return out;
  }
  out.notes.push_back(fmt::format("KV scales in {} of {} layers: used by an fp8 cache only", complete, arch.layers));
  if (all.size() > 1 && std::all_of(all.begin(), all.end(), [&](float s) { return s == all.front(); })) {
    out.notes.push_back(fmt::format(
        "all KV scales are {}: they may never have been calibrated (--calculate-kv-scales ignores them)", all.front()));
  }
  return out;
}

}  // namespace tare::runtime
