#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kv_page.h"
#include "kernels/linear.h"
#include "machine/isa.h"

/// Causal attention over the pages of a KV cache, for prefill chunks and decodes in one ragged batch:
///
///     out[i][h] = sum_j softmax_j( cap( scale * q[i][h] . k[j][h / group] ) ) * v[j][h / group],    i - window < j <=
///     i
///
/// over absolute positions i, j; cap(x) = soft_cap * tanh(x / soft_cap). Keys and values are always read in the form in
/// which they are stored, also those of the current tokens.
///
/// Promise P1: a query's output is bitwise the same whatever its neighbours, the chunking, the batch and the number of
/// threads. Key blocks are walked at absolute positions with one chain of operations.
namespace tare::kernels {

struct AttentionProblem {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;
  float scale = 1;
  float soft_cap = 0;  // 0 = none
  int64_t window = 0;  // keys that a query sees, itself included; 0 = all
  KvForm k;
  KvForm v;
  int64_t block_size = 16;  // power of two
};

/// The pages of one layer. Non-owning.
struct KvLayer {
  std::byte* base = nullptr;  // block b starts at base + b * block_bytes
  int64_t block_bytes = 0;
  int64_t kv_heads = 0;
  KvPageLayout k;
  KvPageLayout v;
  std::span<const float> k_scale;  // fp8 without scale in page: one number, or one per kv head; empty = 1
  std::span<const float> v_scale;

  std::byte* k_side(int64_t block, int64_t head) const {
    return base + block * block_bytes + head * (k.bytes + v.bytes);
  }
  std::byte* v_side(int64_t block, int64_t head) const { return k_side(block, head) + k.bytes; }
  static float pick(std::span<const float> scales, int64_t head) {
    return scales.empty() ? 1.0f : scales.size() == 1 ? scales[0] : scales[static_cast<size_t>(head)];
  }
  float k_static_scale(int64_t head) const { return pick(k_scale, head); }
  float v_static_scale(int64_t head) const { return pick(v_scale, head); }
};

/// Queries of one sequence. Keys and values of positions 0 .. position + count - 1 (inside the window) are stored.
struct AttentionSegment {
  const float* q = nullptr;  // [count][heads][head_dim], rows q_stride floats apart
  int64_t q_stride = 0;
  int64_t count = 0;
  int64_t position = 0;             // of the first query
  const int32_t* blocks = nullptr;  // block table: blocks[p / block_size] holds position p
  float* out = nullptr;             // [count][heads * head_dim], rows out_stride floats apart
  int64_t out_stride = 0;
};

/// New keys (after RoPE) and values of one sequence, quantized and stored into its pages.
struct KvAppend {
  const float* k = nullptr;  // [count][kv_heads * head_dim], rows k_stride floats apart
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  int64_t count = 0;
  int64_t position = 0;  // of the first token
  const int32_t* blocks = nullptr;
};

/// One registry row: attention and the store that belongs to it. The bytes that `store` writes are the same for all
/// rows.
struct AttentionKernel {
  std::string_view name;
  machine::Isa isa = machine::Isa::kReference;
  Verdict (*can_implement)(const AttentionProblem&, const machine::Capabilities&) = nullptr;
  /// Scratch for `run`, enough for any batch of at most `max_queries` queries in total.
  int64_t (*workspace_bytes)(const AttentionProblem&, int64_t max_queries, int64_t max_context, int threads) = nullptr;
  void (*run)(const AttentionProblem&, const KvLayer&, std::span<const AttentionSegment>,
              std::span<std::byte> workspace, ThreadPool&) = nullptr;
  void (*store)(const KvLayer&, std::span<const KvAppend>, ThreadPool&) = nullptr;
};

/// In order of preference. A value, built here and passed on.
using AttentionRegistry = std::vector<const AttentionKernel*>;
AttentionRegistry builtin_attention_kernels();

struct AttentionSelection {
  const AttentionKernel* kernel = nullptr;
  std::vector<Rejection> rejected;
};

/// The first kernel that says yes. `forced` skips all others; its refusal is an error, and so is an unknown name.
Result<AttentionSelection> select_attention(const AttentionRegistry& registry, const AttentionProblem& problem,
                                            const machine::Capabilities& caps, std::string_view forced = {});

}  // namespace tare::kernels
