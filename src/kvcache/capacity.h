#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "kvcache/paged_cache.h"

namespace tare::kvcache {

/// Longest sequence: as the memory allows, up to what the model was made for (--max-model-len auto).
inline constexpr int64_t kFitMemory = -1;

struct CapacityRequest {
  PagedKvCacheOptions cache;                     // num_blocks is not read
  int64_t max_model_len = 0;                     // tokens; kFitMemory
  int64_t trained_len = 0;                       // what the model was made for
  int64_t max_num_seqs = 1;                      // sequences that run at a time
  std::optional<int64_t> kv_cache_memory_bytes;  // --kv-cache-memory-bytes
  std::optional<int64_t> available_bytes;        // what --memory leaves
  /// Without either of the two: room for all sequences at full length, but not more than this.
  int64_t default_bytes = int64_t{4} << 30;
};

/// How many tokens fit, and what they take.
struct Capacity {
  int64_t bytes_per_token = 0;  // all layers, scales included
  int64_t block_size = 0;
  int64_t num_blocks = 0;
  int64_t kv_bytes = 0;  // of all blocks, never above the budget
  int64_t max_model_len = 0;

  int64_t tokens() const { return num_blocks * block_size; }
  /// Sequences of the longest length that fit at a time.
  double concurrency() const;
};

/// Errors: kDoesNotFit with the numbers when one block, or the longest sequence, has no room, or when the two budgets
/// contradict each other; as kv_bytes_per_token.
Result<Capacity> plan_capacity(const CapacityRequest& request);

}  // namespace tare::kvcache
