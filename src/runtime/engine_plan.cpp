#include "runtime/engine_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size_text.h"

namespace tare::runtime {

std::string EnginePlan::text() const {
  const auto size = [](int64_t bytes) { return size_text(static_cast<uint64_t>(bytes)); };
  return fmt::format(
      "KV cache {}: {} tokens ({} blocks of {}), longest sequence {} tokens, {:.1f} of them at a time; weights {}, KV "
      "{} ({} bytes a token), workspace {}",
      kv_format, capacity.tokens(), capacity.num_blocks, capacity.block_size, capacity.max_model_len,
      capacity.concurrency(), size(weights_bytes), size(capacity.kv_bytes), capacity.bytes_per_token,
      size(workspace_bytes + step_bytes));
}

Result<EnginePlan> plan_engine(const model::Transformer& transformer, const EnginePlanRequest& request, int threads) {
  const model::Architecture& arch = transformer.architecture();
  EnginePlan out{.weights_bytes = transformer.packed_bytes(),
                 .workspace_bytes = transformer.workspace_bytes(),
                 .kv_format = kvcache::describe(request.cache.format)};
  kvcache::CapacityRequest capacity{.cache = model::cache_options(arch, request.cache),
                                    .max_model_len = request.max_model_len,
                                    .trained_len = arch.max_positions,
                                    .max_num_seqs = request.max_num_seqs,
                                    .kv_cache_memory_bytes = request.kv_cache_memory_bytes};
  if (capacity.max_model_len == 0) capacity.max_model_len = arch.max_positions;
  const int64_t longest = capacity.max_model_len == kvcache::kFitMemory ? arch.max_positions : capacity.max_model_len;
  // Attention's scratch does not depend on the number of blocks: one tells its size.
  model::AttentionCache::Options probe = request.cache;
  probe.num_blocks = 1;
  probe.context = longest;
  probe.max_batch_tokens = request.max_batched_tokens;
  TARE_ASSIGN(const int64_t attention, model::AttentionCache::workspace_bytes_for(arch, probe, threads));
  // A row of logits for each sequence, and each thread's copy while it chooses.
  const int64_t rows = std::min(request.max_num_seqs, request.max_batched_tokens) + threads;
  out.step_bytes = attention + rows * arch.vocab_size * static_cast<int64_t>(sizeof(float));
  if (request.available_bytes) {
    capacity.available_bytes = *request.available_bytes - out.step_bytes;
    if (*capacity.available_bytes < 0) {
      return does_not_fit("the workspace of attention and logits does not fit",
                          {.where = "--memory",
                           .expected = fmt::format("{} bytes beside the model", out.step_bytes),
                           .found = fmt::format("{}", *request.available_bytes),
                           .hint = "lower --max-num-seqs or --max-model-len"});
    }
  }
  TARE_ASSIGN(out.capacity, kvcache::plan_capacity(capacity));
  return out;
}

}  // namespace tare::runtime
