#include "eval/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/interrupt.h"
#include "numerics/softmax.h"

namespace tare::eval {

namespace {

int64_t window_count(int64_t tokens, const Protocol& protocol) {
  const int64_t all = tokens / protocol.context;
  return protocol.windows > 0 ? std::min(all, protocol.windows) : all;
}

// Tokens of window w as the model sees them.
std::vector<int32_t> window_tokens(std::span<const int32_t> tokens, int64_t w, const Protocol& protocol) {
  const auto part = tokens.subspan(static_cast<size_t>(w * protocol.context), static_cast<size_t>(protocol.context));
  std::vector<int32_t> out(part.begin(), part.end());
  if (protocol.name == "llama" && protocol.bos >= 0) out.front() = protocol.bos;
  return out;
}

int64_t first_scored(const Protocol& protocol) {
  return protocol.name == "llama" ? protocol.context / 2 : 0;
}

Result<int64_t> checked_window_count(std::span<const int32_t> tokens, const Protocol& protocol) {
  TARE_TRY(check(protocol));
  const int64_t windows = window_count(static_cast<int64_t>(tokens.size()), protocol);
  if (windows == 0) {
    return invalid_input("text is shorter than one window",
                         {.expected = fmt::format("at least {} tokens", protocol.context),
                          .found = fmt::format("{}", tokens.size()),
                          .hint = "lower --context or give a longer text"});
  }
  return windows;
}

void finish(Perplexity& p) {
  const auto n = static_cast<double>(p.window_nll.size());
  p.nll_mean = std::accumulate(p.window_nll.begin(), p.window_nll.end(), 0.0) / n;
  double variance = 0;
  for (const double nll : p.window_nll) variance += (nll - p.nll_mean) * (nll - p.nll_mean);
  p.nll_stderr = p.window_nll.size() > 1 ? std::sqrt(variance / (n - 1) / n) : 0;
  p.perplexity = std::exp(p.nll_mean);
}

Error not_finite(int64_t window, int64_t position) {
  return make_error(ErrorKind::kNotFinite, "logits are not finite",
                    {.where = fmt::format("window {}, position {}", window, position)});
}

}  // namespace

Status check(const Protocol& protocol) {
  if (protocol.name != "windows" && protocol.name != "llama") {
    return invalid_input(
        "unknown protocol",
        {.where = "--protocol", .expected = "windows or llama", .found = fmt::format("'{}'", protocol.name)});
  }
  if (protocol.context < 2) {
    return invalid_input(
        "a window needs a target",
        {.where = "--context", .expected = "at least 2", .found = fmt::format("{}", protocol.context)});
  }
  // Longer than any model's context: the cache for it would be refused by the system, not by us.
  constexpr int64_t kLongest = 1 << 24;
  if (protocol.context > kLongest) {
    return invalid_input("a window is too long", {.where = "--context",
                                                  .expected = fmt::format("at most {}", kLongest),
                                                  .found = fmt::format("{}", protocol.context)});
  }
  if (protocol.windows < 0) {
    return invalid_input(
        "number of windows is out of range",
        {.where = "--windows", .expected = "at least 1, or 0 for all", .found = fmt::format("{}", protocol.windows)});
  }
  return {};
}

json::object divergence_json(const Divergence& divergence) {
  return {{"windows", divergence.window_kl.size()},
          {"kl_mean", divergence.kl_mean},
          {"kl_stderr", divergence.kl_stderr},
          {"kl_p99", divergence.kl_p99},
          {"kl_max", divergence.kl_max},
          {"top1_agreement", divergence.top1_agreement},
          {"perplexity", divergence.model.perplexity},
          {"reference_perplexity", divergence.reference.perplexity}};
}

double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  return numerics::log_sum_exp(logits) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

double kl_divergence(std::span<const float> reference, std::span<const float> model) {
  return numerics::kl_divergence(reference, model);
}

Result<Perplexity> perplexity(runtime::Scorer& scorer, std::span<const int32_t> tokens, const Protocol& protocol,
                              ThreadPool& pool, const Progress& progress) {
  TARE_ASSIGN(const int64_t windows, checked_window_count(tokens, protocol));
  const auto vocab = static_cast<size_t>(scorer.vocab_size());
  Perplexity out;
  std::vector<double> nll(static_cast<size_t>(protocol.context));
  for (int64_t w = 0; w < windows; ++w) {
    if (interrupted()) return make_error(ErrorKind::kInterrupted, "interrupted");
    const std::vector<int32_t> window = window_tokens(tokens, w, protocol);
    TARE_TRY(scorer.run(window, [&](int64_t first, int64_t rows, const float* logits) -> Status {
      pool.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t position = first + i;
          if (position + 1 >= protocol.context) continue;
          nll[static_cast<size_t>(position)] = negative_log_likelihood({logits + static_cast<size_t>(i) * vocab, vocab},
                                                                       window[static_cast<size_t>(position) + 1]);
        }
      });
      return {};
    }));
    double sum = 0;
    int64_t count = 0;
    for (int64_t position = first_scored(protocol); position + 1 < protocol.context; ++position, ++count) {
      if (!std::isfinite(nll[static_cast<size_t>(position)])) return not_finite(w, position);
      sum += nll[static_cast<size_t>(position)];
    }
    out.window_nll.push_back(sum / static_cast<double>(count));
    out.tokens += count;
    if (progress) progress(w + 1, windows);
  }
  finish(out);
  return out;
}

Result<Divergence> divergence(runtime::Scorer& model, runtime::Scorer& reference, std::span<const int32_t> tokens,
                              const Protocol& protocol, ThreadPool& pool, const Progress& progress,
                              const model::Observer* observer) {
  TARE_ASSIGN(const int64_t windows, checked_window_count(tokens, protocol));
  if (model.vocab_size() != reference.vocab_size()) {
    return invalid_input("models have different vocabularies", {.expected = fmt::format("{}", reference.vocab_size()),
                                                                .found = fmt::format("{}", model.vocab_size())});
  }
  const auto vocab = static_cast<size_t>(model.vocab_size());
  const int64_t piece = std::min(model.piece_tokens(), reference.piece_tokens());
  std::vector<float> model_logits(static_cast<size_t>(piece) * vocab);
  std::vector<float> reference_logits(model_logits.size());
  struct Point {
    double kl = 0, nll = 0, reference_nll = 0;
    bool same_top = false;
  };
  std::vector<Point> points(static_cast<size_t>(protocol.context));
  std::vector<double> all_kl;
  int64_t agreed = 0;
  Divergence out;
  for (int64_t w = 0; w < windows; ++w) {
    if (interrupted()) return make_error(ErrorKind::kInterrupted, "interrupted");
    const std::vector<int32_t> window = window_tokens(tokens, w, protocol);
    for (int64_t first = 0; first < protocol.context; first += piece) {
      const int64_t count = std::min(piece, protocol.context - first);
      TARE_TRY(model.piece(window, first, count, model_logits.data(), observer));
      TARE_TRY(reference.piece(window, first, count, reference_logits.data()));
      pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t position = first + i;
          if (position + 1 >= protocol.context) continue;
          const std::span<const float> a(model_logits.data() + static_cast<size_t>(i) * vocab, vocab);
          const std::span<const float> b(reference_logits.data() + static_cast<size_t>(i) * vocab, vocab);
          const int32_t target = window[static_cast<size_t>(position) + 1];
          points[static_cast<size_t>(position)] = {.kl = kl_divergence(b, a),
                                                   .nll = negative_log_likelihood(a, target),
                                                   .reference_nll = negative_log_likelihood(b, target),
                                                   .same_top = std::max_element(a.begin(), a.end()) - a.begin() ==
                                                               std::max_element(b.begin(), b.end()) - b.begin()};
        }
      });
    }
    double kl = 0, nll = 0, reference_nll = 0;
    int64_t count = 0;
    int64_t same = 0;
    for (int64_t position = first_scored(protocol); position + 1 < protocol.context; ++position, ++count) {
      const Point& point = points[static_cast<size_t>(position)];
      if (!std::isfinite(point.kl) || !std::isfinite(point.nll)) return not_finite(w, position);
      kl += point.kl;
      nll += point.nll;
      reference_nll += point.reference_nll;
      same += point.same_top ? 1 : 0;
      all_kl.push_back(point.kl);
    }
    const auto n = static_cast<double>(count);
    agreed += same;
    out.window_kl.push_back(kl / n);
    out.window_top1.push_back(static_cast<double>(same) / n);
    out.model.window_nll.push_back(nll / n);
    out.reference.window_nll.push_back(reference_nll / n);
    out.model.tokens += count;
    out.reference.tokens += count;
    if (progress) progress(w + 1, windows);
  }
  finish(out.model);
  finish(out.reference);
  const auto n = static_cast<double>(all_kl.size());
  out.kl_mean = std::accumulate(all_kl.begin(), all_kl.end(), 0.0) / n;
  out.top1_agreement = static_cast<double>(agreed) / n;
  // Positions of one window depend on each other, so the error of the mean is taken over windows.
  double variance = 0;
  for (const double kl : out.window_kl) variance += (kl - out.kl_mean) * (kl - out.kl_mean);
  const auto w = static_cast<double>(windows);
  out.kl_stderr = windows > 1 ? std::sqrt(variance / (w - 1) / w) : 0;
  std::sort(all_kl.begin(), all_kl.end());
  out.kl_p99 = all_kl[static_cast<size_t>(std::ceil(0.99 * n)) - 1];
  out.kl_max = all_kl.back();
  return out;
}

}  // namespace tare::eval
