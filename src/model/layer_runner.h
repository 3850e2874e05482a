#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "model/attention_cache.h"
#include "model/step_buffers.h"
#include "model/transformer.h"

namespace tare::model {

/// The arithmetic of single layers on one batch, over buffers of its own. Transformer is a loop over it; calibration
/// runs layers one by one, with weights of its choice. One thread at a time; work inside runs on the pool.
class LayerRunner {
 public:
  LayerRunner() = default;
  /// context: longest sequence, for RoPE kinds that depend on it. arch and pool must outlive the runner.
  LayerRunner(const Architecture& arch, int64_t max_tokens, int64_t context, machine::Isa isa, ThreadPool& pool);

  /// Makes room for the scratch of these matrices. Before their first run.
  void require(const LinearGroup& group) { buffers_.require(group, max_tokens_, pool_->size()); }
  void require(const BoundLayer& layer);

  /// Positions of the batch. Before the first layer of a batch.
  void begin(const Batch& batch) { buffers_.set_positions(batch, *arch_, frequencies_); }

  /// Residual stream of the batch [M, hidden]: filled by the caller, changed by the layers.
  float* hidden() { return buffers_.hidden(); }
  /// What the last half layer added to it (before the residual multiplier) [M, hidden].
  const float* branch() { return buffers_.branch(); }
  StepBuffers& buffers() { return buffers_; }

  /// hidden += attention(norm(hidden)): the first half of layer `index`.
  void attention(const BoundLayer& layer, int64_t index, const Batch& batch, AttentionCache& cache,
                 const Observer* observer = nullptr) {
    attend(layer, index, batch, cache, observer);
    attention_out(layer, index, static_cast<int64_t>(batch.tokens.size()), observer);
  }
  /// hidden += mlp(norm(hidden)): the second half.
  void mlp(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer = nullptr) {
    mlp_inner(layer, index, m, observer);
    mlp_out(layer, index, m, observer);
  }

  /// The four steps of the two halves; each reads what the one before left in the buffers. A step needs only the
  /// matrices that it multiplies with to be bound.
  /// qkv (after RoPE) and attention from hidden: norm, q k v, RoPE, keys and values into the cache, attention.
  void attend(const BoundLayer& layer, int64_t index, const Batch& batch, AttentionCache& cache,
              const Observer* observer = nullptr);
  /// hidden += o(attention)
  void attention_out(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer = nullptr);
  /// gate and up from hidden: norm, the two matrices.
  void mlp_inner(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer = nullptr);
  /// hidden += down(activation(gate) * up)
  void mlp_out(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer = nullptr);

 private:
  /// Norms of heads and RoPE.
  void turn_heads(const BoundLayer& layer, const LayerPlan& plan, float* q, float* k, int64_t m);

  const Architecture* arch_ = nullptr;
  ThreadPool* pool_ = nullptr;
  int64_t max_tokens_ = 0;
  machine::Isa isa_ = machine::Isa::kReference;
  std::vector<RopeFrequencies> frequencies_;  // one per Architecture::ropes
  StepBuffers buffers_;
  std::vector<kernels::KvAppend> appends_;
  std::vector<kernels::AttentionSegment> segments_;
};

}  // namespace tare::model
