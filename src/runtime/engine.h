#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kvcache/block_manager.h"
#include "model/attention_cache.h"
#include "model/transformer.h"
#include "runtime/request.h"
#include "runtime/scheduler.h"
#include "text/tokenizer.h"

namespace tare::runtime {

struct EngineOptions {
  model::AttentionCache::Options cache;  // formats, scales, block size, num_blocks
  int64_t max_model_len = 0;             // longest sequence, prompt and output; 0 = as many as the blocks hold
  int64_t max_num_seqs = 64;
  /// Tokens of a step; 0 = what the transformer's workspace holds.
  int64_t max_batched_tokens = 0;
  bool pace_steps = false;  // --max-num-batched-tokens auto: a step takes at most twice a step of its decodes alone
  double target_itl_s = 0;  // --target-itl-ms: the length of a step aimed at; 0 = none
  bool chunked_prefill = true;
  bool prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  std::vector<int32_t> end_ids;
  std::string model_key;  // tells models apart in the key of a cached prefix
};

/// Counters since the start and gauges of now, for metrics.
struct EngineStats {
  int64_t running = 0;
  int64_t waiting = 0;
  double kv_usage = 0;  // share of the blocks that some sequence holds
  int64_t blocks_referenced = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;      // of prompts, computed or found
  int64_t generation_tokens = 0;  // sampled
  int64_t not_finite = 0;         // outputs ended by logits that are not finite
  SchedulerCounters scheduler;
  kvcache::BlockCounters blocks;
  // The last step.
  int64_t step_decodes = 0;
  int64_t step_prompt_tokens = 0;
  double step_s = 0;
};

/// Runs requests together: scheduler + block manager + transformer + sampler + detokenizer. What a request gets does
/// not depend on what else runs, on chunks, preemptions or cache hits. One thread calls it.
class Engine {
 public:
  /// tokenizer: none when texts are not wanted. The pages are made here: num_blocks * block bytes.
  /// Errors: sizes that contradict each other; the longest sequence does not fit the blocks.
  static Result<Engine> make(model::Transformer& transformer, std::optional<text::Tokenizer> tokenizer,
                             EngineOptions options, ThreadPool& pool);
  Engine(Engine&&) noexcept;
  ~Engine();

  /// Errors: an empty prompt, ids or parameters out of range, a stop string without a tokenizer, a request that can
  /// never fit (with the numbers).
  Result<RequestId> submit(Request request);
  /// Takes effect before the next step, at every stage; each unfinished output's last event says kAborted. Unknown ids
  /// are ignored: a request may end while its client goes away.
  void cancel(RequestId id);
  bool idle() const;

  /// One forward pass. Errors here end the engine; a request's own failure is in its event.
  Result<std::vector<Event>> step();

  int64_t max_model_len() const;
  int64_t kv_bytes() const;
  EngineStats stats() const;
  const model::AttentionCache& cache() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tare::runtime
