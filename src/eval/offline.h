#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace tare::eval {

/// Requests of random tokens, all of one shape, that run to their full length.
struct OfflineShape {
  int64_t input_tokens = 32;
  int64_t output_tokens = 128;
  int64_t requests = 8;
  uint64_t seed = 0;
};
std::vector<runtime::Request> offline_requests(const OfflineShape& shape, int64_t vocab_size);

struct OfflineRun {
  double seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t preemptions = 0;
  double output_tokens_per_s() const { return static_cast<double>(output_tokens) / seconds; }
  double total_tokens_per_s() const { return static_cast<double>(prompt_tokens + output_tokens) / seconds; }
};
/// Gives all requests to an idle engine at once and waits for the last one. Errors: interrupted; a request that failed.
Result<OfflineRun> run_offline(runtime::Engine& engine, std::vector<runtime::Request> requests);

/// What a long prompt does to outputs that run already.
struct InterferenceShape {
  int64_t streams = 4;
  int64_t stream_prompt_tokens = 32;
  int64_t prompt_tokens = 1024;
  int64_t plain_steps = 24;  // measured without the prompt
  uint64_t seed = 0;
};
struct Interference {
  std::vector<double> plain_s;  // steps of the streams alone, ascending
  std::vector<double> mixed_s;  // steps that took a piece of the prompt too, ascending
  double ttft_s = 0;            // of the prompt
  int64_t largest_chunk = 0;

  static double quantile(const std::vector<double>& sorted, double q);
  /// Gap between two tokens of a stream, relative to a plain step.
  double ratio(double q) const { return quantile(mixed_s, q) / quantile(plain_s, 0.5); }
};
/// One prompt first teaches the engine how long steps take; the second one is measured. The engine is idle before and
/// after, holds streams + 1 sequences, and caches no prefixes. Errors: as run_offline.
Result<Interference> measure_interference(runtime::Engine& engine, const InterferenceShape& shape, int64_t vocab_size);

}  // namespace tare::eval
