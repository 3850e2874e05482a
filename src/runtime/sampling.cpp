#include "runtime/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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

void allow_only(const SamplingParams& params, const SamplingHistory&, std::span<float> logits) {
  std::vector<bool> allowed(logits.size(), false);
  for (const int32_t id : params.allowed_token_ids) allowed[static_cast<size_t>(id)] = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!allowed[i]) logits[i] = kNever;
  }
}

void forbid_bad_words(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits) {
  for (const std::vector<int32_t>& word : params.bad_words) {
    const size_t before = word.size() - 1;
    if (before > history.output.size()) continue;
    const auto tail = history.output.subspan(history.output.size() - before);
    if (std::equal(tail.begin(), tail.end(), word.begin())) logits[static_cast<size_t>(word.back())] = kNever;
  }
}

void forbid_ends(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits) {
  if (static_cast<int64_t>(history.output.size()) >= params.min_tokens) return;
  if (!params.ignore_eos) {
    for (const int32_t id : history.end_ids) logits[static_cast<size_t>(id)] = kNever;
  }
  for (const int32_t id : params.stop_token_ids) logits[static_cast<size_t>(id)] = kNever;
}

void add_bias(const SamplingParams& params, const SamplingHistory&, std::span<float> logits) {
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
}

void apply_penalties(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits) {
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

// Greater weight first, lower id on ties: the order in which top-k and top-p keep.
bool before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

// Keeps the likeliest ones that make up `share` of all, at least one. Vocabularies are large and the kept part mostly
// small, so the order is made piece by piece.
void keep_top_p(std::vector<Candidate>& all, double share) {
  double total = 0;
  for (const Candidate& c : all) total += c.weight;
  double mass = 0;
  size_t kept = 0;
  for (size_t ordered = 0, piece = 256; kept < all.size() && mass < share * total; piece *= 4) {
    const size_t end = std::min(all.size(), ordered + piece);
    const auto begin = all.begin() + static_cast<ptrdiff_t>(ordered);
    const auto middle = all.begin() + static_cast<ptrdiff_t>(end);
    if (middle != all.end()) std::nth_element(begin, middle, all.end(), before);
    std::sort(begin, middle, before);
    while (kept < end && mass < share * total) mass += all[kept++].weight;
    ordered = end;
  }
  all.resize(std::max<size_t>(kept, 1));
}

Status check_finite(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max())) {
      return make_error(ErrorKind::kNotFinite, "logits are not finite", {.where = fmt::format("token id {}", i)});
    }
  }
  return {};
}

// Logarithm of the sum of exp over finite logits.
double log_sum_exp(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
  return static_cast<double>(top) + std::log(sum);
}

std::vector<TokenLogprob> best_of(std::span<const float> logits, double norm, int64_t top) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = static_cast<ptrdiff_t>(std::min(static_cast<size_t>(top), ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<TokenLogprob> out;
  for (auto id = ids.begin(); id != ids.begin() + count; ++id) {
    out.push_back({*id, static_cast<double>(logits[static_cast<size_t>(*id)]) - norm});
  }
  return out;
}

}  // namespace

std::vector<LogitsProcessor> builtin_processors(const SamplingParams& params) {
  using Step = void (*)(const SamplingParams&, const SamplingHistory&, std::span<float>);
  std::vector<LogitsProcessor> out;
  const auto add = [&](bool wanted, const char* name, Step step) {
    if (!wanted) return;
    out.push_back({name, [&params, step](const SamplingHistory& history, std::span<float> logits) -> Status {
                     step(params, history, logits);
                     return {};
                   }});
  };
  const SamplingParams& p = params;
  add(!p.allowed_token_ids.empty(), "allowed_token_ids", allow_only);
  add(!p.bad_words.empty(), "bad_words", forbid_bad_words);
  add(p.min_tokens > 0, "min_tokens", forbid_ends);
  add(!p.logit_bias.empty(), "logit_bias", add_bias);
  add(p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1, "penalties", apply_penalties);
  return out;
}

std::vector<Candidate> candidates(const SamplingParams& params, std::span<const float> logits) {
  const auto greatest = std::max_element(logits.begin(), logits.end());
  if (params.temperature == 0) return {{static_cast<int32_t>(greatest - logits.begin()), 1.0}};
  const auto top = static_cast<double>(*greatest);
  std::vector<Candidate> out;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((static_cast<double>(logits[i]) - top) / params.temperature);
    if (weight > 0 && weight >= params.min_p) out.push_back({static_cast<int32_t>(i), weight});
  }
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (params.top_k > 0 && static_cast<int64_t>(out.size()) > params.top_k) {
    std::nth_element(out.begin(), out.begin() + static_cast<ptrdiff_t>(params.top_k), out.end(), before);
    out.resize(static_cast<size_t>(params.top_k));
    // Sums depend on the order of their terms: it must not depend on how the partial order was made.
    std::sort(out.begin(), out.end(), by_id);
  }
  if (params.top_p < 1) {
    keep_top_p(out, params.top_p);
    std::sort(out.begin(), out.end(), by_id);
  }
  return out;
}

uint64_t output_seed(uint64_t seed, int64_t index) {
  return index == 0 ? seed : seed ^ (static_cast<uint64_t>(index) * 0xd1342543de82ef95u);
}

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
  const int64_t fewest = p.prompt_logprobs >= 0 ? 0 : 1;
  if (p.max_tokens < fewest) {
    return range_error("max_tokens", fewest == 0 ? "at least 0" : "at least 1", fmt::format("{}", p.max_tokens));
  }
  for (const int64_t count : {p.logprobs, p.prompt_logprobs}) {
    if (count < -1) return range_error("logprobs", "at least 0, or -1 for none", fmt::format("{}", count));
  }
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

Result<Sample> score(std::span<const float> logits, int32_t id, int64_t top) {
  TARE_TRY(check_finite(logits));
  const double norm = log_sum_exp(logits);
  return Sample{id, static_cast<double>(logits[static_cast<size_t>(id)]) - norm, best_of(logits, norm, top)};
}

Result<Sample> sample(const SamplingParams& params, const SamplingHistory& history, std::span<float> logits,
                      std::span<const LogitsProcessor> more) {
  TARE_TRY(check_finite(logits));
  std::vector<float> raw;
  if (params.logprobs >= 0) raw.assign(logits.begin(), logits.end());

  for (const LogitsProcessor& processor : builtin_processors(params)) TARE_TRY(processor.apply(history, logits));
  for (const LogitsProcessor& processor : more) {
    if (Status status = processor.apply(history, logits); !status.ok()) {
      Error error = std::move(status).error();
      if (error.where.empty()) error.where = processor.name;
      return error;
    }
  }
  if (*std::max_element(logits.begin(), logits.end()) == kNever) {
    return invalid_input("no token is allowed", {.hint = "allowed_token_ids, bad_words and min_tokens exclude all"});
  }

  const std::vector<Candidate> kept = candidates(params, logits);
  double total = 0;
  for (const Candidate& c : kept) total += c.weight;
  // The sum goes the same way as the search, so that a draw below 1 always finds its token.
  double left = uniform(params.seed, history.output.size()) * total;
  int32_t chosen = kept.back().id;
  for (const Candidate& c : kept) {
    left -= c.weight;
    if (left < 0) {
      chosen = c.id;
      break;
    }
  }
  if (params.logprobs >= 0) return score(raw, chosen, params.logprobs);
  return Sample{.id = chosen};
}

}  // namespace tare::runtime
