#include "kvcache/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "kvcache/block_manager.h"

namespace tare::kvcache {

double Capacity::concurrency() const {
  // A sequence takes whole blocks.
  return static_cast<double>(num_blocks) / static_cast<double>(ceil_div(max_model_len, block_size));
}

Result<Capacity> plan_capacity(const CapacityRequest& request) {
  Capacity out{.block_size = request.cache.block_size};
  TARE_ASSIGN(out.bytes_per_token, kv_bytes_per_token(request.cache));
  const int64_t block_bytes = out.bytes_per_token * out.block_size;
  if (request.kv_cache_memory_bytes && request.available_bytes &&
      *request.kv_cache_memory_bytes > *request.available_bytes) {
    return does_not_fit("the KV cache does not fit beside the weights",
                        {.where = "--kv-cache-memory-bytes",
                         .expected = fmt::format("at most {} bytes, which --memory leaves", *request.available_bytes),
                         .found = fmt::format("{}", *request.kv_cache_memory_bytes)});
  }
  const bool fit = request.max_model_len == kFitMemory;
  const int64_t length = fit ? request.trained_len : request.max_model_len;
  std::optional<int64_t> budget = request.kv_cache_memory_bytes;
  if (!budget) budget = request.available_bytes;
  // More blocks than all sequences can fill would only be a cache of prefixes: a budget that was named is used for it.
  const int64_t useful = ceil_div(length, out.block_size) * request.max_num_seqs;
  if (budget) {
    TARE_ASSIGN(out.num_blocks, blocks_for_budget(*budget, block_bytes));
    if (!request.kv_cache_memory_bytes) out.num_blocks = std::min(out.num_blocks, useful);
  } else {
    out.num_blocks = std::max<int64_t>(1, std::min(useful, request.default_bytes / block_bytes));
    // One sequence of full length is what was asked for, whatever it takes.
    if (!fit) out.num_blocks = std::max(out.num_blocks, ceil_div(length, out.block_size));
  }
  // Block numbers are 32 bits wide.
  out.num_blocks = std::min<int64_t>(out.num_blocks, std::numeric_limits<int32_t>::max());
  out.kv_bytes = out.num_blocks * block_bytes;
  out.max_model_len = fit ? std::min(length, out.tokens()) : length;
  if (out.max_model_len > out.tokens()) {
    return does_not_fit("the longest sequence does not fit the KV cache",
                        {.where = "--max-model-len",
                         .expected = fmt::format("at most {} tokens in {} bytes", out.tokens(), budget.value_or(0)),
                         .found = fmt::format("{} tokens, {} bytes each", out.max_model_len, out.bytes_per_token),
                         .hint = "say --max-model-len auto, raise --kv-cache-memory-bytes or --memory, or use a "
                                 "smaller --kv-cache-dtype"});
  }
  return out;
}

}  // namespace tare::kvcache
