#include "quantize/transforms/smooth_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantize/transforms/fold.h"

namespace tare::quantize {

namespace {

int64_t rotary_dim(const Block& block) {
  const int rope = block.arch->plan[static_cast<size_t>(block.layer)].rope;
  return rope < 0 ? 0 : block.arch->ropes[static_cast<size_t>(rope)].rotary_dim;
}

struct Exponents {
  double alpha = 0;
  double beta = 0;
};

// (0, 0), then alpha alone and alpha against 1 - alpha. QServe's grid has steps of 0.05; the error is flat between
// neighbours, so steps of 0.125 find the same minimum for a third of the time.
std::vector<Exponents> candidates() {
  std::vector<Exponents> out = {{0, 0}};
  for (int i = 1; i <= 8; ++i) {
    const double alpha = i / 8.0;
    out.push_back({alpha, 0});
    if (i < 8) out.push_back({alpha, 1 - alpha});
  }
  return out;
}

}  // namespace

void pair_spans(std::span<float> spans, int64_t head_dim, int64_t rotary) {
  const auto half = static_cast<size_t>(rotary / 2);
  for (size_t head = 0; head + static_cast<size_t>(head_dim) <= spans.size(); head += static_cast<size_t>(head_dim)) {
    for (size_t j = head; j < head + half; ++j) spans[j] = spans[j + half] = std::max(spans[j], spans[j + half]);
  }
}

std::vector<float> attention_factors(const Block& block, std::span<const float> r_q, std::span<const float> r_k,
                                     double alpha, double beta) {
  const model::Architecture& arch = *block.arch;
  std::vector<float> q = per_factor_max(block, model::Site::kOut, r_q);  // the same sharing: query heads of a group
  std::vector<float> k(r_k.begin(), r_k.end());
  if (arch.qk_norm == model::QkNorm::kPerHead) {
    const auto d = static_cast<size_t>(arch.head_dim);
    for (std::vector<float>* spans : {&q, &k}) {
      for (size_t i = d; i < spans->size(); ++i) (*spans)[i % d] = std::max((*spans)[i % d], (*spans)[i]);
      for (size_t i = d; i < spans->size(); ++i) (*spans)[i] = (*spans)[i % d];
    }
  }
  pair_spans(q, arch.head_dim, rotary_dim(block));
  pair_spans(k, arch.head_dim, rotary_dim(block));
  return smoothing_factors(k, q, alpha, beta);
}

void fold_attention_factors(Block& block, std::span<const float> lambda) {
  const model::Architecture& arch = *block.arch;
  const int64_t d = arch.head_dim;
  const int64_t shared = arch.heads / arch.kv_heads;
  std::vector<float> for_q;
  std::vector<float> for_k;
  for (int64_t c = 0; c < arch.q_size(); ++c) {
    for_q.push_back(lambda[static_cast<size_t>(c / d / shared * d + c % d)]);
  }
  for (const float l : lambda) for_k.push_back(1.0f / l);
  if (arch.qk_norm == model::QkNorm::kNone) {
    scale_rows(block.view(Role::kQ), for_q);
    scale_rows(block.view(Role::kK), for_k);
  } else {
    // Per head the weights are [head_dim], and lambda is the same for all heads.
    const float offset = arch.norm_plus_one ? 1.0f : 0.0f;
    for (size_t i = 0; i < block.q_norm.size(); ++i) block.q_norm[i] = (block.q_norm[i] + offset) * for_q[i] - offset;
    for (size_t i = 0; i < block.k_norm.size(); ++i) block.k_norm[i] = (block.k_norm[i] + offset) * for_k[i] - offset;
  }
  block.touch();
}

Result<TransformReport> smooth_attention(Block& block, BlockData& data, const TransformContext& context) {
  TransformReport report{.name = "smooth_attention", .layer = block.layer};
  if (context.widths.kv == 16) {
    report.summary = "not needed: the cache stays in floating point";
    return report;
  }
  TARE_ASSIGN(const BlockStatistics* statistics, data.statistics(block));
  const std::vector<float> r_q = statistics->q_absmax;
  const std::vector<float> r_k = statistics->k_absmax;
  Exponents best{context.setting("smooth_attention.alpha", -1), context.setting("smooth_attention.beta", 0)};
  if (best.alpha < 0) {
    const Trial trial{.half = Half::kAttention, .kv_bits = context.widths.kv};
    double least = 0;
    for (const Exponents e : candidates()) {
      Block candidate = block;
      fold_attention_factors(candidate, attention_factors(candidate, r_q, r_k, e.alpha, e.beta));
      TARE_ASSIGN(const double error, data.error(candidate, trial));
      if (e.alpha == 0) report.numbers.emplace_back("error_before", error);
      // Later ones win ties.
      if (e.alpha == 0 || error <= least) {
        least = error;
        best = e;
      }
    }
    report.numbers.emplace_back("error_after", least);
  }
  report.numbers.emplace_back("alpha", best.alpha);
  report.numbers.emplace_back("beta", best.beta);
  report.summary = fmt::format("alpha {:.3g}, beta {:.3g}", best.alpha, best.beta);
  const std::vector<float> lambda = attention_factors(block, r_q, r_k, best.alpha, best.beta);
  if (std::any_of(lambda.begin(), lambda.end(), [](float l) { return l != 1.0f; })) {
    fold_attention_factors(block, lambda);
  }
  return report;
}

}  // namespace tare::quantize
