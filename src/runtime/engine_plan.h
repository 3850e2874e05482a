#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "kvcache/capacity.h"
#include "model/attention_cache.h"
#include "model/transformer.h"

namespace tare::runtime {

struct EnginePlanRequest {
  model::AttentionCache::Options cache;  // num_blocks is not read
  int64_t max_model_len = 0;             // 0 = what the model was made for; kvcache::kFitMemory
  int64_t max_num_seqs = 1;
  int64_t max_batched_tokens = 512;
  std::optional<int64_t> kv_cache_memory_bytes;
  std::optional<int64_t> available_bytes;  // what --memory leaves beside the model
};

/// What an engine will take, before it takes it.
struct EnginePlan {
  kvcache::Capacity capacity;
  int64_t weights_bytes = 0;
  int64_t workspace_bytes = 0;  // of the forward pass
  int64_t step_bytes = 0;       // of attention and logits: comes with the engine, beside the pages
  std::string kv_format;

  /// "KV cache int8: 512 blocks of 16 tokens, 8192 tokens, ..." for people.
  std::string text() const;
};

/// Errors: as kvcache::plan_capacity; no attention kernel for the format.
Result<EnginePlan> plan_engine(const model::Transformer& transformer, const EnginePlanRequest& request, int threads);

}  // namespace tare::runtime
