#include "model/layer_runner.h"

#include <utility>

namespace tare::model {

LayerRunner::LayerRunner(const Architecture& arch, int64_t max_tokens, int64_t context, machine::Isa isa,
                         ThreadPool& pool)
    : arch_(&arch), pool_(&pool), max_tokens_(max_tokens), isa_(isa), buffers_(arch, max_tokens, isa) {
  for (const RopeSpec& rope : arch.ropes) frequencies_.push_back(rope_frequencies(rope, context));
}

void LayerRunner::require(const BoundLayer& layer) {
  for (const LinearGroup* group : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) require(*group);
}

namespace {

// What a matrix reads: the observer sees it and may put something else in its place.
RowSource seen(const Observer* observer, int64_t index, Site site, RowSource x, int64_t m, StepBuffers& buffers,
               ThreadPool& pool) {
  if (!observer || (!observer->input && !observer->replace)) return x;
  const float* rows = buffers.materialize(x, m, pool);
  if (observer->input) observer->input(index, site, rows, m, x.k);
  if (observer->replace) x.rows = observer->replace(index, site, rows, m, x.k);
  return x;
}

}  // namespace

void LayerRunner::turn_heads(const BoundLayer& layer, const LayerPlan& plan, float* q, float* k, int64_t m) {
  const Architecture& arch = *arch_;
  const int64_t q_size = arch.q_size();
  const int64_t kv_size = arch.kv_size();
  const int64_t qkv_size = q_size + 2 * kv_size;
  StepBuffers& b = buffers_;
  const StepTimer timer(b.profile(), StepOp::kTurn);
  if (arch.qk_norm == QkNorm::kPerHead) {
    norm_heads(q, m, qkv_size, arch.heads, arch.head_dim, layer.q_norm, arch, isa_, *pool_);
    norm_heads(k, m, qkv_size, arch.kv_heads, arch.head_dim, layer.k_norm, arch, isa_, *pool_);
  } else if (arch.qk_norm == QkNorm::kFull) {
    norm_heads(q, m, qkv_size, 1, q_size, layer.q_norm, arch, isa_, *pool_);
    norm_heads(k, m, qkv_size, 1, kv_size, layer.k_norm, arch, isa_, *pool_);
  }
  if (plan.rope >= 0) {
    const RopeTable& table = b.rope(plan.rope);
    apply_rope(q, m, qkv_size, arch.heads, arch.head_dim, table, isa_, *pool_);
    apply_rope(k, m, qkv_size, arch.kv_heads, arch.head_dim, table, isa_, *pool_);
  }
}

void LayerRunner::attend(const BoundLayer& layer, int64_t index, const Batch& batch, AttentionCache& cache,
                         const Observer* observer) {
  const Architecture& arch = *arch_;
  const LayerPlan& plan = arch.plan[static_cast<size_t>(index)];
  const auto m = static_cast<int64_t>(batch.tokens.size());
  const int64_t q_size = arch.q_size();
  const int64_t kv_size = arch.kv_size();
  const int64_t qkv_size = q_size + 2 * kv_size;
  StepBuffers& b = buffers_;

  RowSource x = seen(observer, index, Site::kQkv, b.normed(layer.attention_norm_in, arch), m, b, *pool_);
  b.run_group(layer.qkv, std::move(x), m, b.qkv(), qkv_size, *pool_, StepOp::kQkv);
  float* q = b.qkv();
  float* k = q + q_size;
  turn_heads(layer, plan, q, k, m);
  if (observer && observer->change_keys) observer->change_keys(index, q, qkv_size, k, qkv_size, m);
  if (observer && observer->keys) observer->keys(index, q, qkv_size, k, qkv_size, m);

  appends_.clear();
  segments_.clear();
  int64_t row = 0;
  for (const SequenceSlice& slice : batch.sequences) {
    float* row_q = b.qkv() + row * qkv_size;
    appends_.push_back({.k = row_q + q_size,
                        .k_stride = qkv_size,
                        .v = row_q + q_size + kv_size,
                        .v_stride = qkv_size,
                        .count = slice.count,
                        .position = slice.first_position,
                        .blocks = slice.block_table.data()});
    segments_.push_back({.q = row_q,
                         .q_stride = qkv_size,
                         .count = slice.count,
                         .position = slice.first_position,
                         .blocks = slice.block_table.data(),
                         .out = b.attention() + row * q_size,
                         .out_stride = q_size});
    row += slice.count;
  }
  {
    const StepTimer timer(b.profile(), StepOp::kStore);
    cache.store(index, appends_, *pool_);
  }
  int64_t keys = 0;
  for (const SequenceSlice& slice : batch.sequences) keys += slice.first_position + slice.count;
  const StepTimer timer(b.profile(), StepOp::kAttention, keys * cache.token_bytes(index));
  cache.attend(index, segments_, *pool_);
}

void LayerRunner::attention_out(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer) {
  const Architecture& arch = *arch_;
  StepBuffers& b = buffers_;
  RowSource x = seen(observer, index, Site::kOut, b.attended(arch), m, b, *pool_);
  b.run_group(layer.o, std::move(x), m, b.branch(), arch.hidden, *pool_, StepOp::kOut);
  const StepTimer timer(b.profile(), StepOp::kOutAdd);
  b.add_branch(layer.attention_norm_out, arch, m, *pool_);
}

void LayerRunner::mlp_inner(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer) {
  const Architecture& arch = *arch_;
  StepBuffers& b = buffers_;
  RowSource x = seen(observer, index, Site::kGateUp, b.normed(layer.mlp_norm_in, arch), m, b, *pool_);
  b.run_group(layer.gate_up, std::move(x), m, b.gate_up(), 2 * arch.intermediate, *pool_, StepOp::kGateUp);
}

void LayerRunner::mlp_out(const BoundLayer& layer, int64_t index, int64_t m, const Observer* observer) {
  const Architecture& arch = *arch_;
  StepBuffers& b = buffers_;
  RowSource x = seen(observer, index, Site::kDown, b.activated(arch), m, b, *pool_);
  b.run_group(layer.down, std::move(x), m, b.branch(), arch.hidden, *pool_, StepOp::kDown);
  {
    const StepTimer timer(b.profile(), StepOp::kDownAdd);
    b.add_branch(layer.mlp_norm_out, arch, m, *pool_);
  }
  if (observer && observer->output) observer->output(index, b.hidden(), m);
}

}  // namespace tare::model
