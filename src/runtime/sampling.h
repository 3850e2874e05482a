#pragma once

#include <cstdint>
#include <functional>
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
  int64_t logprobs = -1;         // -1 = none; else the chosen token and this many best
  int64_t prompt_logprobs = -1;  // the same for the tokens of the prompt; then max_tokens may be 0
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

/// Changes the logits of one output before its next token is chosen: a mask sets what must not come to -inf. A pure
/// function of the history, so that batches, preemption and several outputs of one prompt change nothing; what is
/// costly may be remembered inside by that history. Called from any thread, for one output at a time. Errors end the
/// request.
struct LogitsProcessor {
  std::string name;
  std::function<Status(const SamplingHistory& history, std::span<float> logits)> apply;
};

/// The processors that the parameters ask for, in order: allowed ids, bad words, min_tokens, bias, penalties. `params`
/// must outlive them.
std::vector<LogitsProcessor> builtin_processors(const SamplingParams& params);

struct Candidate {
  int32_t id = 0;
  double weight = 0;  // probability relative to the likeliest token
};

/// What may be drawn from processed logits, by ascending id: temperature, then min-p (relative to the best), top-k,
/// then top-p (of what is left). Of equal weights the lower ids stay. temperature 0: the greatest logit alone.
std::vector<Candidate> candidates(const SamplingParams& params, std::span<const float> logits);

/// Chooses the next token: the built-in processors, then `more`, then a draw among the candidates. The draw of step i
/// of an output depends only on (seed, i), so it does not change with the batch. logits [vocab] are changed. Errors:
/// kNotFinite when a logit is NaN or +inf; no token is allowed; what a processor says.
Result<Sample> sample(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits,
                      std::span<const LogitsProcessor> more = {});

/// Log-probability of a given token and of the `top` best, of the raw distribution. Errors: kNotFinite.
Result<Sample> score(std::span<const float> logits, int32_t id, int64_t top);

/// The seed of output `index` of a request: the request's own for 0.
uint64_t output_seed(uint64_t seed, int64_t index);

/// Uniform in [0, 1) from a key and a counter (splitmix64 over both).
double uniform(uint64_t key, uint64_t counter);

}  // namespace tare::runtime
