#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/sampling.h"

namespace tare::runtime {

using RequestId = uint64_t;
using Clock = std::chrono::steady_clock;

/// What a client wants: one prompt and `n` outputs. Output i draws from output_seed(params.seed, i); output 0 is what a
/// request with n = 1 gives.
struct Request {
  std::vector<int32_t> prompt;
  SamplingParams params;
  int64_t n = 1;
  int64_t priority = 0;                       // policy kPriority: lower goes first
  std::string cache_salt;                     // requests of different salts never share cached blocks
  std::optional<Clock::time_point> deadline;  // not finished by then: ends with kDeadline
  /// Applied in order after the built-in ones (grammars and the like).
  std::vector<LogitsProcessor> processors;
};

enum class FinishReason {
  kStop,      // an end token, a stop token or a stop string
  kLength,    // max_tokens, or the context is full
  kAborted,   // cancelled
  kDeadline,  // the deadline passed
  kError,     // this request failed; the engine goes on
};
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "abort", "deadline", "error"

/// When things happened to a request. Queue time = scheduled - arrival, prefill = first_token - scheduled, decode =
/// finished - first_token; a preemption counts into the phase it falls in.
struct RequestTiming {
  Clock::time_point arrival;
  Clock::time_point scheduled;    // first chunk computed in a step that began then
  Clock::time_point first_token;  // of any output
};

/// News of one output of a request after a step: tokens with their text, and the end when it came.
struct Event {
  RequestId id = 0;
  int64_t index = 0;  // of the output, 0..n-1
  std::vector<Sample> tokens;
  std::string text;  // empty while it is held back
  /// Of prompt tokens (params.prompt_logprobs), in order; output 0 only. The first token has none.
  std::vector<Sample> prompt;
  std::optional<FinishReason> finish;
  std::string stop_reason;     // the stop string, or the stop token id; empty on an end of sequence
  std::optional<Error> error;  // kError, kDeadline
  int64_t cached_tokens = 0;   // with `finish`: prompt tokens that were found in the cache
  RequestTiming timing;        // with `finish`
};

}  // namespace tare::runtime
