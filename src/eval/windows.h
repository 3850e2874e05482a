#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "runtime/scorer.h"

namespace tare::eval {

/// How a text is cut and scored.
///   windows   non-overlapping windows of `context` tokens, each from an empty context, all context - 1 targets, no BOS
///   added,
///             the last partial window dropped
///   llama     the same windows with BOS in place of the first token, second half of each window scored
struct Protocol {
  std::string name = "windows";
  int64_t context = 512;
  int64_t windows = 0;  // at most this many; 0 = all
  int32_t bos = -1;     // llama only
};
Status check(const Protocol& protocol);

struct Perplexity {
  std::vector<double> window_nll;  // mean over a window's targets, nats
  double nll_mean = 0;             // over windows
  double nll_stderr = 0;           // of the mean over windows; 0 with one window
  double perplexity = 0;           // exp(nll_mean)
  int64_t tokens = 0;              // targets scored
};

struct Divergence {
  double kl_mean = 0;  // KL(reference || model) per position, nats
  double kl_stderr = 0;
  double kl_p99 = 0;
  double kl_max = 0;
  double top1_agreement = 0;
  std::vector<double> window_kl;
  std::vector<double> window_top1;
  Perplexity model;
  Perplexity reference;
};

/// The members of a report that say how two models differ.
json::object divergence_json(const Divergence& divergence);

using Progress = std::function<void(int64_t done, int64_t total)>;

/// Errors: fewer tokens than one window; interrupted; non-finite logits (position named).
Result<Perplexity> perplexity(runtime::Scorer& scorer, std::span<const int32_t> tokens, const Protocol& protocol,
                              ThreadPool& pool, const Progress& progress = {});

/// Both models over the same positions, piece by piece. observer: looks at, or changes, what `model` computes.
/// Errors: different vocabularies; as above.
Result<Divergence> divergence(runtime::Scorer& model, runtime::Scorer& reference, std::span<const int32_t> tokens,
                              const Protocol& protocol, ThreadPool& pool, const Progress& progress = {},
                              const model::Observer* observer = nullptr);

/// -log softmax(logits)[target] in nats; double over f32 logits. NaN when a logit is not finite.
double negative_log_likelihood(std::span<const float> logits, int32_t target);

/// KL(softmax(reference) || softmax(model)) in nats, over one position.
double kl_divergence(std::span<const float> reference, std::span<const float> model);

}  // namespace tare::eval
