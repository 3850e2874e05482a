#include "eval/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tare::eval {

namespace {

constexpr double kConfidence = 1.96;  // 95 % of a normal distribution
constexpr int64_t kMoreWindows = 4;
constexpr int64_t kPromptTokens = 32;
constexpr int64_t kContinuationTokens = 48;
constexpr int64_t kLongestPeriod = 4;
constexpr int64_t kCollapsed = 24;  // tokens of one cycle; half of the continuation

struct Interval {
  double low, high;
};

// Of a mean over windows.
Interval interval(const std::vector<double>& values, double mean) {
  if (values.size() < 2) return {mean, mean};
  double variance = 0;
  for (const double v : values) variance += (v - mean) * (v - mean);
  const auto n = static_cast<double>(values.size());
  const double half = kConfidence * std::sqrt(variance / (n - 1) / n);
  return {mean - half, mean + half};
}

int64_t cycle_at_end(const std::vector<int32_t>& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  int64_t longest = 0;
  for (int64_t period = 1; period <= kLongestPeriod; ++period) {
    int64_t length = period;
    while (length < n && ids[static_cast<size_t>(n - 1 - length)] == ids[static_cast<size_t>(n - 1 - length + period)])
      ++length;
    // One period alone repeats nothing.
    if (length >= 2 * period) longest = std::max(longest, length);
  }
  return longest;
}

// One measure against its limit: whether it holds, and what to say of it.
struct Check {
  bool holds = true;
  bool open = false;  // the limit lies inside the interval
  std::string text;
};

Check check_limit(const char* what, double value, Interval range, double limit, bool below) {
  Check out{.holds = below ? value <= limit : value >= limit, .open = range.low < limit && limit < range.high};
  if (!out.holds || out.open) {
    out.text =
        fmt::format("{} is {:.4g} (95 %: {:.4g} to {:.4g}), limit {} {:.4g}{}", what, value, range.low, range.high,
                    below ? "at most" : "at least", limit, out.open ? ": too close for certainty" : "");
  }
  return out;
}

}  // namespace

Result<GateLimits> parse_gate(std::string_view text) {
  GateLimits limits;
  size_t at = 0;
  do {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, comma - at);
    at = comma + 1;
    const size_t equals = part.find('=');
    double* target = nullptr;
    const std::string_view name = part.substr(0, equals);
    if (name == "kl") target = &limits.kl;
    if (name == "top1") target = &limits.top1;
    if (name == "ppl_ratio") target = &limits.ppl_ratio;
    double value = 0;
    const std::string_view number = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool read = error == std::errc() && end == number.data() + number.size() && std::isfinite(value);
    if (!target || !read || value < 0 || (target == &limits.top1 && value > 1)) {
      return invalid_input("not a limit of the gate",
                           {.where = "--gate",
                            .expected = "kl=NATS, top1=SHARE, ppl_ratio=FACTOR, separated by commas, or off",
                            .found = fmt::format("'{}'", part)});
    }
    *target = value;
  } while (at <= text.size());
  return limits;
}

GateLimits default_gate(int weight_bits) {
  if (weight_bits >= 8) return {.kl = 0.1, .top1 = 0.8, .ppl_ratio = 1.15};
  if (weight_bits >= 5) return {.kl = 0.25, .top1 = 0.7, .ppl_ratio = 1.35};
  // Round-to-nearest 4-bit of a model of 0.1 billion parameters just passes; of a large one it passes by far.
  if (weight_bits == 4) return {.kl = 0.8, .top1 = 0.5, .ppl_ratio = 2.2};
  return {.kl = 1.2, .top1 = 0.4, .ppl_ratio = 3.5};
}

Result<Continuation> continue_greedily(runtime::Scorer& scorer, std::span<const int32_t> prompt, int64_t count) {
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  std::vector<float> logits(static_cast<size_t>(scorer.vocab_size()) * prompt.size());
  const auto vocab = static_cast<std::ptrdiff_t>(scorer.vocab_size());
  Continuation out;
  int64_t first = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto rows = static_cast<int64_t>(ids.size()) - first;
    TARE_TRY(scorer.piece(ids, first, rows, logits.data()));
    const float* last = logits.data() + (rows - 1) * vocab;
    const auto next = static_cast<int32_t>(std::max_element(last, last + vocab) - last);
    first += rows;
    ids.push_back(next);
    out.ids.push_back(next);
  }
  out.longest_cycle = cycle_at_end(out.ids);
  return out;
}

Result<GateVerdict> judge(runtime::Scorer& model, runtime::Scorer& reference, std::span<const int32_t> tokens,
                          Protocol protocol, const GateLimits& limits, ThreadPool& pool, const Progress& progress) {
  GateVerdict out;
  out.limits = limits;
  const int64_t available = static_cast<int64_t>(tokens.size()) / protocol.context;
  for (bool last = false;;) {
    TARE_ASSIGN(out.measured, divergence(model, reference, tokens, protocol, pool, progress));
    const Divergence& d = out.measured;
    std::vector<double> log_ratio;
    for (size_t w = 0; w < d.model.window_nll.size(); ++w) {
      log_ratio.push_back(d.model.window_nll[w] - d.reference.window_nll[w]);
    }
    const double mean_log = d.model.nll_mean - d.reference.nll_mean;
    const Interval logs = interval(log_ratio, mean_log);
    const Interval top1 = interval(d.window_top1, d.top1_agreement);
    out.ppl_ratio = std::exp(mean_log);
    out.ppl_ratio_low = std::exp(logs.low);
    out.ppl_ratio_high = std::exp(logs.high);
    out.top1_low = top1.low;
    out.top1_high = top1.high;
    const Check checks[] = {check_limit("mean KL", d.kl_mean, interval(d.window_kl, d.kl_mean), limits.kl, true),
                            check_limit("top-1 agreement", d.top1_agreement, top1, limits.top1, false),
                            check_limit("perplexity ratio", out.ppl_ratio, {out.ppl_ratio_low, out.ppl_ratio_high},
                                        limits.ppl_ratio, true)};
    const bool open = std::any_of(std::begin(checks), std::end(checks), [](const Check& c) { return c.open; });
    const int64_t more = std::min(available, kMoreWindows * protocol.windows);
    if (open && !last && more > protocol.windows) {
      protocol.windows = more;
      last = true;
      continue;
    }
    for (const Check& check : checks) {
      out.passed = out.passed && check.holds;
      if (!check.text.empty()) out.reasons.push_back(check.text);
    }
    break;
  }
  const int64_t prompt = std::min(kPromptTokens, protocol.context / 2);
  const int64_t count = std::min(kContinuationTokens, protocol.context - prompt);
  const auto start = tokens.first(static_cast<size_t>(prompt));
  TARE_ASSIGN(out.continuation, continue_greedily(model, start, count));
  TARE_ASSIGN(out.reference_continuation, continue_greedily(reference, start, count));
  if (out.continuation.longest_cycle >= kCollapsed && out.reference_continuation.longest_cycle < kCollapsed) {
    out.passed = false;
    out.reasons.push_back(
        fmt::format("the continuation of a prompt ends in a cycle of {} tokens, the source's does not",
                    out.continuation.longest_cycle));
  }
  return out;
}

json::object gate_json(const GateVerdict& verdict) {
  const Divergence& d = verdict.measured;
  const auto limit = [](double value) { return std::isfinite(value) ? json::value(value) : json::value(nullptr); };
  json::object out = divergence_json(d);
  out.insert({{"passed", verdict.passed},
              {"top1_95", {verdict.top1_low, verdict.top1_high}},
              {"ppl_ratio", verdict.ppl_ratio},
              {"ppl_ratio_95", {verdict.ppl_ratio_low, verdict.ppl_ratio_high}},
              {"window_kl", json::array(d.window_kl.begin(), d.window_kl.end())},
              {"longest_cycle", verdict.continuation.longest_cycle},
              {"limits",
               {{"kl", limit(verdict.limits.kl)},
                {"top1", verdict.limits.top1},
                {"ppl_ratio", limit(verdict.limits.ppl_ratio)}}},
              {"reasons", json::array(verdict.reasons.begin(), verdict.reasons.end())}});
  return out;
}

}  // namespace tare::eval
