#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/attention_cache.h"
#include "model/transformer.h"
#include "runtime/sampling.h"
#include "text/tokenizer.h"

namespace tare::runtime {

using RequestId = uint64_t;

/// What a client wants: one prompt, one output.
struct Request {
  std::vector<int32_t> prompt;
  SamplingParams params;
};

enum class FinishReason { kStop, kLength, kAborted, kError };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "abort", "error"

/// News of one request after a step: new tokens with their text, and the end when it came.
struct Event {
  RequestId id = 0;
  std::vector<Sample> tokens;
  std::string text;  // empty while it is held back
  std::optional<FinishReason> finish;
  std::string stop_reason;     // the stop string, or the stop token id; empty on an end of sequence
  std::optional<Error> error;  // kError
};

struct EngineOptions {
  model::AttentionCache::Options cache;  // format, block size, num_blocks
  int64_t max_model_len = 0;             // longest sequence, prompt and output; 0 = as many as the blocks hold
  int64_t max_num_seqs = 64;
  std::vector<int32_t> end_ids;
};

/// Runs requests together: each step takes decodes first, then prompt chunks of the oldest requests, within the
/// transformer's batch; requests wait while the blocks they may need are not free. One thread calls it; results do not
/// depend on what else runs.
class Engine {
 public:
  /// tokenizer: none when texts are not wanted.
  static Result<Engine> make(model::Transformer& transformer, std::optional<text::Tokenizer> tokenizer,
                             EngineOptions options, ThreadPool& pool);
  Engine(Engine&&) noexcept;
  ~Engine();

  /// Errors: an empty prompt, ids out of range, parameters out of range, a request that can never fit (with the
  /// numbers).
  Result<RequestId> submit(Request request);
  /// Takes effect before the next step; the request's last event says kAborted.
  void cancel(RequestId id);
  bool idle() const;

  /// One forward pass. Errors here end the engine; a request's own failure is in its event.
  Result<std::vector<Event>> step();

  int64_t kv_bytes() const;
  const model::AttentionCache& cache() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tare::runtime
