#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kvcache/paged_cache.h"
#include "model/architecture.h"
#include "tensor/model_weights.h"

namespace tare::runtime {

/// What a checkpoint says of the scales of an fp8 cache.
struct CheckpointKvScales {
  /// [layers], or empty when the file holds none. A layer without scales has empty lists: a cache that needs them is
  /// refused, naming the layer.
  std::vector<kvcache::KvLayerScales> layers;
  std::vector<std::string> notes;
};

/// Takes the cache's scales out of the weights: k_scale and v_scale for an fp8 cache; q_scale and prob_scale are read
/// and not applied, because queries and probabilities stay f32, and that is said. Errors: not readable; a scale of
/// another number of heads.
Result<CheckpointKvScales> take_kv_scales(tensor::ModelWeights& weights, const model::Architecture& arch);

}  // namespace tare::runtime
