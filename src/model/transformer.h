#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/architecture.h"
#include "model/attention_cache.h"
#include "model/linear.h"
#include "model/step_profile.h"
#include "tensor/model_weights.h"

namespace tare::model {

/// Consecutive tokens of one sequence inside a batch: the next `count` entries of Batch::tokens, at positions
/// first_position, first_position + 1, ... Their pages exist in the block table already.
struct SequenceSlice {
  std::span<const int32_t> block_table;
  int64_t first_position = 0;
  int64_t count = 0;
};

/// One step: prefill chunks and decodes mixed, as one ragged batch.
struct Batch {
  std::span<const int32_t> tokens;           // [M], every id checked by the caller to be < vocab_size
  std::span<const SequenceSlice> sequences;  // counts sum to M
  std::span<const int32_t> logit_rows;       // rows of the batch whose logits are wanted
};

/// Where a matrix input is seen by an observer.
enum class Site { kQkv, kOut, kGateUp, kDown, kLogits };

/// Looks at values during a forward pass (calibration, blame). Called on the calling thread.
struct Observer {
  std::function<void(int64_t layer, Site site, const float* x, int64_t m, int64_t k)> input;
  /// What the matrices at a site read in place of x [M, K]: x itself, or memory of the observer that lives until its
  /// next call. Calibration rounds activations here.
  std::function<const float*(int64_t layer, Site site, const float* x, int64_t m, int64_t k)> replace;
  /// Changes queries and keys after RoPE, before keys are stored: shapes as below.
  std::function<void(int64_t layer, float* q, int64_t q_stride, float* k, int64_t k_stride, int64_t m)> change_keys;
  /// Queries and keys after RoPE: q [M, heads*head_dim], k [M, kv_heads*head_dim], row strides given.
  std::function<void(int64_t layer, const float* q, int64_t q_stride, const float* k, int64_t k_stride, int64_t m)>
      keys;
  /// The residual stream after a layer [M, hidden].
  std::function<void(int64_t layer, const float* h, int64_t m)> output;
};

/// The weights of one layer, bound to kernels.
struct BoundLayer {
  std::vector<float> attention_norm_in, attention_norm_out, mlp_norm_in, mlp_norm_out;
  std::vector<float> q_norm, k_norm;
  LinearGroup qkv, o, gate_up, down;
};
Result<BoundLayer> bind_layer(const tensor::ModelWeights& weights, const Architecture& arch, int64_t layer,
                              const BindOptions& options, ThreadPool& pool);

/// A bound model. forward() is the only way tokens become logits.
/// One thread at a time; work inside runs on the pool.
class Transformer {
 public:
  struct Options {
    BindOptions bind;
    int64_t max_batch_tokens = 512;  // workspace is made for this many; larger batches are refused
    int64_t context = 0;             // longest sequence, for dynamic and longrope RoPE; 0 = arch.max_positions
    std::function<void(int64_t done, int64_t total)> progress;
  };

  /// Accounts for every tensor, then binds layer by layer.
  static Result<Transformer> load(const tensor::ModelWeights& weights, Architecture arch, Options options,
                                  ThreadPool& pool);

  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  const Architecture& architecture() const;
  int64_t max_batch_tokens() const;

  /// logits: [logit_rows.size()][vocab_size] f32. Errors: batch too large, id out of range, position beyond the
  /// context.
  Status forward(const Batch& batch, AttentionCache& cache, float* logits, const Observer* observer = nullptr);

  /// Where the time of forward passes is booked from now on; null: nowhere. Must outlive its use.
  void set_profile(StepProfile* profile);

  /// The weights of one layer, shared: another model of the same architecture may run with them (blame restores layers
  /// so). Errors of set_layer: an architecture of another shape.
  std::shared_ptr<const BoundLayer> layer(int64_t index) const;
  Status set_layer(int64_t index, const Architecture& from, std::shared_ptr<const BoundLayer> layer);

  /// One record a bound matrix, in forward order.
  std::vector<LinearRecord> records() const;
  /// Known leftovers in the file and decisions while binding.
  const std::vector<std::string>& notes() const;

  int64_t packed_bytes() const;  // prepacked weights in memory
  int64_t workspace_bytes() const;

 private:
  struct Impl;
  explicit Transformer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tare::model
