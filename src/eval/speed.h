#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/peaks.h"
#include "model/attention_cache.h"
#include "model/transformer.h"

namespace tare::eval {

/// One measurement of a model's speed.
struct SpeedRequest {
  bool decode = false;
  int64_t tokens = 512;  // prompt tokens of a prefill, or generated tokens per sequence of a decode
  int64_t depth = 0;     // tokens that stand in the context before
  int64_t batch = 1;     // sequences
  int repeats = 5;
  kernels::BenchClock clock = kernels::BenchClock::kWall;
  model::StepProfile* profile = nullptr;  // filled by all repeats but the warm-up; may be null
};

struct Speed {
  std::vector<double> seconds;  // one a repeat, ascending
  double median_s() const { return seconds[seconds.size() / 2]; }
  double fastest_s() const { return seconds.front(); }
  double slowest_s() const { return seconds.back(); }
};

/// Runs the forward pass itself, without tokenizer, sampler or scheduler: a prefill computes the logits of its last
/// token, a decode those of every token. One warm-up comes first. Tokens are drawn from a fixed seed; the context of
/// `depth` tokens is really computed. The transformer's workspace must hold a prefill of `tokens` (or smaller chunks
/// are used, as in serving). Errors: interrupted; does not fit; what forward says.
Result<Speed> measure_speed(model::Transformer& transformer, model::AttentionCache::Options cache,
                            const SpeedRequest& request, ThreadPool& pool);

/// Weights that one token multiplies with in the layers and in the head, and what their stored form takes.
struct TrafficOf {
  int64_t body_weights = 0;
  int64_t head_weights = 0;
  int64_t body_bytes = 0;
  int64_t head_bytes = 0;
};
TrafficOf traffic(const model::Transformer& transformer);

}  // namespace tare::eval
