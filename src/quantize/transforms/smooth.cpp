#include "quantize/transforms/smooth.h"

#include <fmt/format.h>

#include <algorithm>

#include "numerics/mini_float.h"
#include "quantize/transforms/fold.h"

namespace tare::quantize {

using model::Site;

namespace {

constexpr float kFloor = 1e-5f;  // of both spans, as SmoothQuant's authors have it

const char* site_name(Site site) {
  constexpr const char* kNames[] = {"qkv", "o", "gate_up", "down"};
  return kNames[static_cast<size_t>(site)];
}

bool quantized_at(const Block& block, Site site) {
  const std::vector<size_t> readers = block.reading(site);
  return std::any_of(readers.begin(), readers.end(), [&](size_t i) { return !block.matrices[i].scheme.keep; });
}

// Folds the best of some strengths at one site; `search` holds them, a fixed one is tried by nobody.
struct Search {
  Site site;
  std::vector<double> strengths;
  double fixed = -1;
  float floor = 0;
};

// statistics: of the unchanged block; a factor at one site leaves what the others read as it was.
Status smooth_site(Block& block, BlockData& data, const Search& search, const BlockStatistics& statistics,
                   TransformReport& report) {
  const Site site = search.site;
  if (!quantized_at(block, site)) return {};
  const Status fits = can_fold(block, site);
  if (!fits.ok()) {
    report.notes.push_back(fits.error().message());
    return {};
  }
  std::vector<float> x = per_factor_max(block, site, statistics.at(site).absmax);
  std::vector<float> w = per_factor_max(block, site, column_absmax(block, site));
  for (float& v : x) v = std::max(v, search.floor);
  for (float& v : w) v = std::max(v, search.floor);

  double chosen = search.fixed;
  if (chosen < 0) {
    const bool attention = site == Site::kQkv || site == Site::kOut;
    const Trial trial{.half = attention ? Half::kAttention : Half::kMlp, .round_activations = true};
    const Site sites[] = {site};
    double least = 0;
    for (size_t i = 0; i <= search.strengths.size(); ++i) {
      Block candidate = block;
      if (i > 0) {
        const double alpha = search.strengths[i - 1];
        TARE_TRY(fold_factors(candidate, site, smoothing_factors(x, w, alpha, 1 - alpha)));
      }
      TARE_ASSIGN(const Block trial_block, rounded(candidate, sites, data.pool()));
      TARE_ASSIGN(const double error, data.error(trial_block, trial));
      if (i == 0 || error < least) {
        least = error;
        chosen = i == 0 ? -1 : search.strengths[i - 1];
      }
      if (i == 0) report.numbers.emplace_back(fmt::format("{}.error_before", site_name(site)), error);
    }
    report.numbers.emplace_back(fmt::format("{}.error_after", site_name(site)), least);
  }
  const std::string sentence =
      chosen < 0 ? fmt::format("{}: none", site_name(site)) : fmt::format("{}: alpha {:.3g}", site_name(site), chosen);
  report.summary += (report.summary.empty() ? "" : ", ") + sentence;
  if (chosen < 0) return {};
  report.numbers.emplace_back(fmt::format("{}.alpha", site_name(site)), chosen);
  return fold_factors(block, site, smoothing_factors(x, w, chosen, 1 - chosen));
}

}  // namespace

Result<TransformReport> smooth_outputs(Block& block, BlockData& data, const TransformContext& context) {
  TransformReport report{.name = "smooth_outputs", .layer = block.layer};
  TARE_ASSIGN(const BlockStatistics* seen, data.statistics(block));
  const BlockStatistics statistics = *seen;
  Search search{.site = Site::kDown, .fixed = context.setting("smooth_outputs.alpha", -1)};
  for (int i = 0; i <= 7; ++i) search.strengths.push_back(0.05 * i);
  if (context.setting("smooth_outputs.o", 0) != 0) {
    search.site = Site::kOut;
    TARE_TRY(smooth_site(block, data, search, statistics, report));
    search.site = Site::kDown;
  }
  TARE_TRY(smooth_site(block, data, search, statistics, report));
  return report;
}

Result<TransformReport> smoothquant(Block& block, BlockData& data, const TransformContext& context) {
  TransformReport report{.name = "smoothquant", .layer = block.layer};
  TARE_ASSIGN(const BlockStatistics* seen, data.statistics(block));
  const BlockStatistics statistics = *seen;
  for (const Site site : {Site::kQkv, Site::kGateUp}) {
    Search search{.site = site, .fixed = context.setting("smoothquant.alpha", -1), .floor = kFloor};
    for (int i = 3; i <= 9; ++i) search.strengths.push_back(0.1 * i);
    TARE_TRY(smooth_site(block, data, search, statistics, report));
  }
  return report;
}

Result<TransformReport> static_activations(Block& block, BlockData& data, const TransformContext&) {
  TransformReport report{.name = "static_activations", .layer = block.layer};
  TARE_ASSIGN(const BlockStatistics* statistics, data.statistics(block));
  for (BlockMatrix& m : block.matrices) {
    const tensor::ActivationType type = m.scheme.activation.type;
    if (m.scheme.keep || (type != tensor::ActivationType::kS8 && type != tensor::ActivationType::kE4M3)) continue;
    const std::vector<float>& spans = statistics->at(m.site).absmax;
    const float most = *std::max_element(spans.begin(), spans.end());
    if (!(most > 0)) {
      report.notes.push_back(fmt::format("{}: calibration saw only zeros there, so it stays dynamic", m.name));
      continue;
    }
    tensor::ActivationSpec& spec = m.scheme.activation;
    spec.dynamic = false;
    spec.granularity = tensor::ActivationGranularity::kTensor;
    spec.scale = most / (type == tensor::ActivationType::kS8 ? 127.0f : numerics::E4M3::max_value());
    report.numbers.emplace_back(m.name, static_cast<double>(spec.scale));
  }
  report.summary = fmt::format("{} static scales", report.numbers.size());
  return report;
}

}  // namespace tare::quantize
