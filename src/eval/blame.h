#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "eval/windows.h"
#include "model/transformer.h"
#include "runtime/scorer.h"

namespace tare::eval {

/// Neighbouring layers and their part of the divergence.
struct BlamedLayers {
  int64_t first = 0;
  int64_t count = 0;
  double kl_share = 0;   // of the whole model's mean KL: what goes away when these layers are the source's
  bool measured = true;  // false: what is left of a measured group, as if shares added up
};

struct Blame {
  double kl_mean = 0;                // of the whole model, nats
  std::vector<BlamedLayers> groups;  // a partition of all layers, largest share first
  int64_t evaluations = 0;
};

/// Finds the layers that cost most: splits the most expensive group again and again, each time measuring the model with
/// one half restored to the source's weights. One damaged layer among n is named after 1 + ceil(log2 n) evaluations;
/// the search ends there when that layer has more than half of the divergence, else after max_evaluations.
/// The model has its own layers again at the end, also after an error.
/// Errors: different shapes; those of divergence().
Result<Blame> blame_layers(model::Transformer& model, runtime::Scorer& scorer, const model::Transformer& reference,
                           runtime::Scorer& reference_scorer, std::span<const int32_t> tokens, const Protocol& protocol,
                           int64_t max_evaluations, ThreadPool& pool,
                           const std::function<void(int64_t evaluations)>& progress = {});

}  // namespace tare::eval
