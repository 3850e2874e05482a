#include "runtime/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace tare::runtime {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

Error range_error(const char* field, const char* expected, std::string found) {
  return invalid_input(fmt::format("'{}' is out of range", field),
                       {.where = field, .expected = expected, .found = std::move(found)});
}

Status check_ids(const char* field, std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return invalid_input(
          fmt::format("'{}' holds a token id out of range", field),
          {.where = field, .expected = fmt::format("0..{}", vocab_size - 1), .found = fmt::format("{}", id)});
    }
  }
  return {};
}

void forbid_bad_words(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits) {
  for (const std::vector<int32_t>& word : params.bad_words) {
    const size_t before = word.size() - 1;
    if (before > history.output.size()) continue;
    const auto tail = history.output.subspan(history.output.size() - before);
    if (std::equal(tail.begin(), tail.end(), word.begin())) logits[static_cast<size_t>(word.back())] = kNever;
  }
}

void apply_penalties(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits) {
  if (params.presence_penalty == 0 && params.frequency_penalty == 0 && params.repetition_penalty == 1) return;
  std::unordered_map<int32_t, int64_t> counts;
  for (const int32_t id : history.output) ++counts[id];
  // Repetition looks at the prompt too; presence and frequency at the output only.
  if (params.repetition_penalty != 1) {
    std::unordered_map<int32_t, int64_t> seen = counts;
    for (const int32_t id : history.prompt) ++seen[id];
    const auto penalty = static_cast<float>(params.repetition_penalty);
    for (const auto& [id, count] : seen) {
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  for (const auto& [id, count] : counts) {
    logits[static_cast<size_t>(id)] -=
        static_cast<float>(params.frequency_penalty * static_cast<double>(count) + params.presence_penalty);
  }
}

struct Candidate {
  int32_t id = 0;
  double probability = 0;
};

// Greater probability first, lower id on ties: the order that top-k, top-p and the draw share.
bool before(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

int32_t draw(const SamplingParams& params, std::span<const float> logits, int32_t greatest, uint64_t step) {
  const auto top = static_cast<double>(logits[static_cast<size_t>(greatest)]);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp((static_cast<double>(logits[i]) - top) / params.temperature);
    if (p > 0 && p >= params.min_p)
      candidates.push_back({static_cast<int32_t>(i), p});  // min-p is relative to the best
  }
  std::sort(candidates.begin(), candidates.end(), before);
  if (params.top_k > 0 && static_cast<int64_t>(candidates.size()) > params.top_k) {
    candidates.resize(static_cast<size_t>(params.top_k));
  }
  double total = 0;
  for (const Candidate& c : candidates) total += c.probability;
  if (params.top_p < 1) {
    double mass = 0;
    size_t kept = 0;
    while (kept < candidates.size() && mass < params.top_p * total) mass += candidates[kept++].probability;
    candidates.resize(std::max<size_t>(kept, 1));
    total = mass;
  }
  double point = uniform(params.seed, step) * total;
  for (const Candidate& c : candidates) {
    point -= c.probability;
    if (point < 0) return c.id;
  }
  return candidates.back().id;
}

}  // namespace

double uniform(uint64_t key, uint64_t counter) {
  uint64_t z = (key ^ 0x9e3779b97f4a7c15u) + counter * 0xbf58476d1ce4e5b9u;
  for (int round = 0; round < 2; ++round) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
  }
  return static_cast<double>(z >> 11) * 0x1p-53;
}

Status check(const SamplingParams& p, int64_t vocab_size) {
  const auto number = [](double v) { return fmt::format("{}", v); };
  if (!(p.temperature >= 0) || !std::isfinite(p.temperature))
    return range_error("temperature", "at least 0", number(p.temperature));
  if (p.top_k < -1) return range_error("top_k", "at least -1", fmt::format("{}", p.top_k));
  if (!(p.top_p > 0 && p.top_p <= 1)) return range_error("top_p", "in (0, 1]", number(p.top_p));
  if (!(p.min_p >= 0 && p.min_p <= 1)) return range_error("min_p", "in [0, 1]", number(p.min_p));
  if (!(std::abs(p.presence_penalty) <= 2))
    return range_error("presence_penalty", "in [-2, 2]", number(p.presence_penalty));
  if (!(std::abs(p.frequency_penalty) <= 2))
    return range_error("frequency_penalty", "in [-2, 2]", number(p.frequency_penalty));
  if (!(p.repetition_penalty > 0) || !std::isfinite(p.repetition_penalty)) {
    return range_error("repetition_penalty", "greater than 0", number(p.repetition_penalty));
  }
  if (p.max_tokens < 1) return range_error("max_tokens", "at least 1", fmt::format("{}", p.max_tokens));
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens) {
    return range_error("min_tokens", "between 0 and max_tokens", fmt::format("{}", p.min_tokens));
  }
  if (p.stop.size() > 16) return range_error("stop", "at most 16 strings", fmt::format("{}", p.stop.size()));
  for (const std::string& stop : p.stop) {
    if (stop.empty() || stop.size() > 256)
      return range_error("stop", "strings of 1 to 256 bytes", fmt::format("{} bytes", stop.size()));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    TARE_TRY(check_ids("logit_bias", {&id, 1}, vocab_size));
    if (!(std::abs(bias) <= 100)) return range_error("logit_bias", "in [-100, 100]", number(static_cast<double>(bias)));
  }
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (word.empty()) return range_error("bad_words", "words of at least one token", "an empty one");
    TARE_TRY(check_ids("bad_words", word, vocab_size));
  }
  TARE_TRY(check_ids("allowed_token_ids", p.allowed_token_ids, vocab_size));
  return check_ids("stop_token_ids", p.stop_token_ids, vocab_size);
}

Result<Sample> sample(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max())) {
      return make_error(ErrorKind::kNotFinite, "logits are not finite", {.where = fmt::format("token id {}", i)});
    }
  }
  Sample out;
  std::vector<Candidate> best;
  double raw_norm = 0;
  if (params.logprobs >= 0) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
    raw_norm = static_cast<double>(top) + std::log(sum);
    for (size_t i = 0; i < logits.size(); ++i)
      best.push_back({static_cast<int32_t>(i), static_cast<double>(logits[i]) - raw_norm});
    const auto count = std::min(static_cast<size_t>(params.logprobs), best.size());
    std::partial_sort(best.begin(), best.begin() + static_cast<ptrdiff_t>(count), best.end(), before);
    for (size_t i = 0; i < count; ++i) out.top.push_back({best[i].id, best[i].probability});
  }
  std::vector<float> raw;
  if (params.logprobs >= 0) raw.assign(logits.begin(), logits.end());

  if (!params.allowed_token_ids.empty()) {
    std::vector<bool> allowed(logits.size(), false);
    for (const int32_t id : params.allowed_token_ids) allowed[static_cast<size_t>(id)] = true;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!allowed[i]) logits[i] = kNever;
    }
  }
  forbid_bad_words(params, history, logits);
  if (static_cast<int64_t>(history.output.size()) < params.min_tokens) {
    if (!params.ignore_eos) {
      for (const int32_t id : history.end_ids) logits[static_cast<size_t>(id)] = kNever;
    }
    for (const int32_t id : params.stop_token_ids) logits[static_cast<size_t>(id)] = kNever;
  }
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  apply_penalties(params, history, logits);

  const auto greatest = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (logits[static_cast<size_t>(greatest)] == kNever) {
    return make_error(ErrorKind::kNotFinite, "no token is allowed",
                      {.hint = "allowed_token_ids, bad_words and min_tokens exclude all"});
  }
  out.id = params.temperature == 0 ? greatest : draw(params, logits, greatest, history.output.size());
  if (params.logprobs >= 0) out.logprob = static_cast<double>(raw[static_cast<size_t>(out.id)]) - raw_norm;
  return out;
}

}  // namespace tare::runtime
