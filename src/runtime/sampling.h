#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tare::runtime {

/// How the next token is chosen. The names and defaults are those of the serving contract.
struct SamplingParams {
  double temperature = 1.0;  // 0 = greedy: the greatest logit, lowest id on ties
  int64_t top_k = 0;         // 0, -1 = off
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::map<int32_t, float> logit_bias;
  std::vector<int32_t> allowed_token_ids;       // empty = all
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that must not appear
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;  // before it no end token and no stop token is chosen
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop;  // strings that end the text
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  uint64_t seed = 0;
  int64_t logprobs = -1;  // -1 = none; else the chosen token and this many best
};

/// Ranges of every field; ids against the width of the logits. Errors name the field and what was found.
Status check(const SamplingParams& params, int64_t vocab_size);

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
};

struct Sample {
  int32_t id = 0;
  double logprob = 0;             // of the raw distribution, before temperature and penalties
  std::vector<TokenLogprob> top;  // params.logprobs best of the raw distribution
};

/// What a request has produced so far, as far as choosing needs it.
struct SamplingHistory {
  std::span<const int32_t> prompt;
  std::span<const int32_t> output;
  std::span<const int32_t> end_ids;  // not chosen before min_tokens
};

/// Chooses the next token. Steps in order: allowed ids, bad words, min_tokens, bias, penalties, temperature, min-p,
/// top-k, top-p, draw. The draw of step i of a request depends only on (seed, i), so it does not change with the batch.
/// logits [vocab] are changed. Errors: kNotFinite when a logit is NaN or all are -inf.
Result<Sample> sample(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits);

/// Uniform in [0, 1) from a key and a counter (splitmix64 over both).
double uniform(uint64_t key, uint64_t counter);

}  // namespace tare::runtime
