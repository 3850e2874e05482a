#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention_rows.h"

/// Attention as its definition says, one query and head at a time, in double.
namespace tare::kernels {

namespace {

void attend_one(const AttentionProblem& p, const KvLayer& layer, const AttentionSegment& s, int64_t query,
                int64_t head) {
  const int64_t d = p.head_dim;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const int64_t position = s.position + query;
  const int64_t first = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0;
  const float* q = s.q + query * s.q_stride + head * d;

  std::vector<float> vector(static_cast<size_t>(d));
  std::vector<double> weights;  // [position - first + 1]
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j <= position; ++j) {
    const int64_t block = s.blocks[j / p.block_size];
    read_kv(layer.k, layer.k_side(block, kv_head), j % p.block_size, layer.k_static_scale(kv_head), vector.data());
    double score = 0;
    for (int64_t c = 0; c < d; ++c) score += static_cast<double>(q[c]) * vector[static_cast<size_t>(c)];
    score *= p.scale;
    if (p.soft_cap > 0) score = p.soft_cap * std::tanh(score / p.soft_cap);
    weights.push_back(score);
    largest = std::max(largest, score);
  }
  double sum = 0;
  for (double& w : weights) {
    w = std::exp(w - largest);
    sum += w;
  }
  std::vector<double> out(static_cast<size_t>(d));
  for (int64_t j = first; j <= position; ++j) {
    const int64_t block = s.blocks[j / p.block_size];
    read_kv(layer.v, layer.v_side(block, kv_head), j % p.block_size, layer.v_static_scale(kv_head), vector.data());
    const double w = weights[static_cast<size_t>(j - first)] / sum;
    for (size_t c = 0; c < out.size(); ++c) out[c] += w * vector[c];
  }
  float* to = s.out + query * s.out_stride + head * d;
  for (size_t c = 0; c < out.size(); ++c) to[c] = static_cast<float>(out[c]);
}

void run(const AttentionProblem& p, const KvLayer& layer, std::span<const AttentionSegment> segments,
         std::span<std::byte>, ThreadPool& pool) {
  for (const AttentionSegment& s : segments) {
    pool.parallel_for(s.count * p.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) attend_one(p, layer, s, i / p.heads, i % p.heads);
    });
  }
}

}  // namespace

void store_kv_reference(const KvLayer& layer, std::span<const KvAppend> appends, ThreadPool& pool) {
  // One task is one head: tokens of a head share bytes (int4), heads never do.
  pool.parallel_for(static_cast<int64_t>(appends.size()) * layer.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const KvAppend& a = appends[static_cast<size_t>(i / layer.kv_heads)];
      const int64_t head = i % layer.kv_heads;
      for (int64_t t = 0; t < a.count; ++t) {
        const int64_t block = a.blocks[(a.position + t) / layer.k.block_size];
        const int64_t slot = (a.position + t) % layer.k.block_size;
        write_kv(layer.k, layer.k_side(block, head), slot, a.k + t * a.k_stride + head * layer.k.head_dim,
                 layer.k_static_scale(head));
        write_kv(layer.v, layer.v_side(block, head), slot, a.v + t * a.v_stride + head * layer.v.head_dim,
                 layer.v_static_scale(head));
      }
    }
  });
}

const AttentionKernel kAttentionReference{
    .name = "attention_reference",
    .isa = machine::Isa::kReference,
    .can_implement = [](const AttentionProblem&, const machine::Capabilities&) { return Verdict::yes(); },
    .workspace_bytes = [](const AttentionProblem&, int64_t, int64_t, int) { return int64_t{0}; },
    .run = run,
    .store = store_kv_reference,
};

}  // namespace tare::kernels
