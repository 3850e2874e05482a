#include "quantize/transforms/awq.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantize/transforms/fold.h"

namespace tare::quantize {

using model::Site;

namespace {

constexpr float kFloor = 1e-4f;  // of factors, as AWQ's authors have it

// Mean over the channels that share a factor.
std::vector<float> per_factor_mean(const Block& block, Site site, std::span<const float> values) {
  if (site != Site::kOut) return {values.begin(), values.end()};
  const model::Architecture& arch = *block.arch;
  const int64_t d = arch.head_dim;
  const int64_t shared = arch.heads / arch.kv_heads;
  std::vector<float> out(static_cast<size_t>(arch.kv_size()), 0.0f);
  for (int64_t c = 0; c < arch.q_size(); ++c) {
    out[static_cast<size_t>(c / d / shared * d + c % d)] += values[static_cast<size_t>(c)] / static_cast<float>(shared);
  }
  return out;
}

std::vector<float> factors_of(std::span<const float> x, std::span<const float> share, double ratio, bool weighed) {
  std::vector<float> out;
  for (size_t i = 0; i < x.size(); ++i) {
    double s = std::pow(static_cast<double>(x[i]), ratio);
    if (weighed) s /= std::pow(static_cast<double>(share[i]), 1 - ratio) + 1e-4;
    out.push_back(std::max(static_cast<float>(s), kFloor));
  }
  const auto [least, most] = std::minmax_element(out.begin(), out.end());
  const float middle = std::sqrt(*least * *most);
  for (float& s : out) s /= middle;
  const bool usable =
      std::all_of(out.begin(), out.end(), [](float f) { return f > 0 && std::isfinite(f) && std::isfinite(1 / f); });
  if (!usable) std::fill(out.begin(), out.end(), 1.0f);
  return out;
}

// Error of what is behind the site. o and down are the last matrix of their half, so their Gram says it exactly; what
// qkv and gate, up feed is not linear and is run.
Result<double> fold_error(const Block& candidate, BlockData& data, Site site, const Gram* gram,
                          std::span<const float> spread) {
  if (!gram) {
    const Site sites[] = {site};
    TARE_ASSIGN(const Block trial_block, rounded(candidate, sites, data.pool()));
    return data.error(trial_block, {.half = site == Site::kQkv ? Half::kAttention : Half::kMlp, .tokens = 1024});
  }
  const BlockMatrix& m = candidate.matrices[candidate.reading(site).front()];
  std::vector<float> d(m.w.size());
  TARE_TRY(round_matrix(m, m.w.data(), d.data(), data.pool()));
  data.pool().parallel_for(m.n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < m.k; ++i) {
        const auto at = static_cast<size_t>(row * m.k + i);
        d[at] = (m.w[at] - d[at]) / spread[static_cast<size_t>(i)];  // in the units of the unchanged input
      }
    }
  });
  return output_error(*gram, d.data(), m.n, data.products());
}

// What the unchanged block showed. A factor at one site leaves what the others read as it was.
struct Seen {
  BlockStatistics statistics;
  Gram out, down;
};

Status scale_site(Block& block, BlockData& data, Site site, int steps, const Seen& seen, TransformReport& report) {
  const std::vector<size_t> readers = block.reading(site);
  if (std::all_of(readers.begin(), readers.end(), [&](size_t i) { return block.matrices[i].scheme.keep; })) return {};
  const Status fits = can_fold(block, site);
  if (!fits.ok()) {
    report.notes.push_back(fits.error().message());
    return {};
  }
  const std::vector<float> x = per_factor_mean(block, site, seen.statistics.at(site).absmean);
  const std::vector<float> share = per_factor_mean(block, site, column_share(block, site));
  const Gram* gram = site == Site::kOut ? &seen.out : site == Site::kDown ? &seen.down : nullptr;
  const std::vector<float> ones(static_cast<size_t>(block.width(site)), 1.0f);
  TARE_ASSIGN(const double before, fold_error(block, data, site, gram, ones));
  double least = before;
  std::vector<float> best;
  int best_step = -1;
  bool best_weighed = false;
  const auto attempt = [&](int step, bool weighed) -> Status {
    if (step < 0 || step >= steps || (step == 0 && !weighed)) return {};  // step 0 of the plain form changes nothing
    const std::vector<float> factors = factors_of(x, share, static_cast<double>(step) / steps, weighed);
    Block candidate = block;
    TARE_TRY(fold_factors(candidate, site, factors));
    const std::vector<float> spread = spread_factors(block, site, factors);
    TARE_ASSIGN(const double error, fold_error(candidate, data, site, gram, spread));
    if (error < least) {
      least = error;
      best = factors;
      best_step = step;
      best_weighed = weighed;
    }
    return {};
  };
  // The error is smooth in the ratio: every other step first, then the neighbours of the best.
  for (const bool weighed : {false, true}) {
    for (int step = 0; step < steps; step += 2) TARE_TRY(attempt(step, weighed));
  }
  if (const int around = best_step; around >= 0) {
    for (const int step : {around - 1, around + 1}) TARE_TRY(attempt(step, best_weighed));
  }
  const std::string how =
      best.empty() ? "none"
                   : fmt::format("{:.2f}{}", static_cast<double>(best_step) / steps, best_weighed ? " weighed" : "");
  if (!best.empty()) TARE_TRY(fold_factors(block, site, best));
  constexpr const char* kNames[] = {"qkv", "o", "gate_up", "down"};
  const std::string name = kNames[static_cast<size_t>(site)];
  report.summary += fmt::format("{}{} {}", report.summary.empty() ? "" : ", ", name, how);
  report.numbers.emplace_back(name + ".gain", before > 0 ? least / before : 1.0);
  return {};
}

}  // namespace

Result<TransformReport> awq_scales(Block& block, BlockData& data, const TransformContext& context) {
  TransformReport report{.name = "awq", .layer = block.layer};
  const int steps = static_cast<int>(context.setting("awq.steps", 20));
  if (steps < 1) return invalid_input("too few steps", {.where = "awq.steps", .found = fmt::format("{}", steps)});
  Seen seen;
  {
    TARE_ASSIGN(const BlockStatistics* statistics, data.statistics(block));
    seen.statistics = *statistics;
    TARE_ASSIGN(const Gram* out, data.gram(block, Site::kOut));
    seen.out = *out;
    TARE_ASSIGN(const Gram* down, data.gram(block, Site::kDown));
    seen.down = *down;
  }
  for (const Site site : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) {
    if (site == Site::kOut && context.setting("awq.o", 1) == 0) continue;
    TARE_TRY(scale_site(block, data, site, steps, seen, report));
  }
  return report;
}

}  // namespace tare::quantize
