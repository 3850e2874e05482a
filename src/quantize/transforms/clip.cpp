#include "quantize/transforms/clip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"

namespace tare::quantize {

using model::Site;

namespace {

// error[row * groups + g] of d [n, k], by the metric.
Status group_errors(const BlockMatrix& m, const Gram& gram, ClipMetric metric, const float* d,
                    std::vector<double>& error, Products& products) {
  const int64_t k = m.k;
  const int64_t groups = m.groups();
  const int64_t width = m.scheme.grid.group_width(k);
  error.assign(static_cast<size_t>(m.n * groups), 0.0);
  std::vector<float> part;
  std::vector<float> product;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * width;
    const int64_t count = std::min(width, k - first);
    if (metric == ClipMetric::kOutput) {
      part.resize(static_cast<size_t>(count * count));
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(gram.data() + (first + i) * k + first, count, part.data() + i * count);
      }
      product.resize(static_cast<size_t>(m.n * count));
      TARE_TRY(products.multiply(d + first, k, m.n, count, part.data(), count, product.data(), count));
    }
    products.pool().parallel_for(m.n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) {
          const auto e = static_cast<double>(d[row * k + first + i]);
          sum += metric == ClipMetric::kOutput ? e * static_cast<double>(product[static_cast<size_t>(row * count + i)])
                                               : e * e * static_cast<double>(gram.at(first + i, first + i));
        }
        error[static_cast<size_t>(row * groups + g)] = sum;
      }
    });
  }
  return {};
}

// d = w - what the nearest codes decode to, with these clip factors.
Status rounding_error(const BlockMatrix& m, std::span<const float> clip, std::vector<float>& d, ThreadPool& pool) {
  d.resize(m.w.size());
  BlockMatrix with_clip{.n = m.n, .k = m.k, .scheme = m.scheme, .clip = {clip.begin(), clip.end()}};
  TARE_TRY(round_matrix(with_clip, m.w.data(), d.data(), pool));
  pool.parallel_for(m.n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * m.k; i < end * m.k; ++i) {
      d[static_cast<size_t>(i)] = m.w[static_cast<size_t>(i)] - d[static_cast<size_t>(i)];
    }
  });
  return {};
}

bool is_query_or_key(const Block& block, size_t index) {
  return index == 0 || (!block.arch->fused_qkv && index == 1);
}

// One ratio for q and k together, judged by what attention gives.
Status clip_queries_and_keys(Block& block, BlockData& data, std::span<const float> ratios, TransformReport& report) {
  const Trial trial{.half = Half::kAttention};
  const Site sites[] = {Site::kQkv};
  const size_t count = block.arch->fused_qkv ? 1 : 2;
  double least = 0;
  float best = 1;
  for (const float ratio : ratios) {
    Block candidate = block;
    for (size_t i = 0; i < count; ++i) {
      BlockMatrix& m = candidate.matrices[i];
      if (!m.scheme.keep && m.scheme.grid.kind != GridKind::kForm)
        m.clip.assign(static_cast<size_t>(m.n * m.groups()), ratio);
    }
    TARE_ASSIGN(const Block trial_block, rounded(candidate, sites, data.pool()));
    TARE_ASSIGN(const double error, data.error(trial_block, trial));
    if (ratio == 1.0f || error < least) {
      least = error;
      best = ratio;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    BlockMatrix& m = block.matrices[i];
    if (!m.scheme.keep && m.scheme.grid.kind != GridKind::kForm && best != 1.0f)
      m.clip.assign(static_cast<size_t>(m.n * m.groups()), best);
  }
  report.numbers.emplace_back("qk.ratio", static_cast<double>(best));
  return {};
}

}  // namespace

std::vector<float> clip_ratios(int steps, float least) {
  std::vector<float> out = {1.0f};
  for (int i = 1; i <= steps; ++i) {
    out.push_back(1.0f - (1.0f - least) * static_cast<float>(i) / static_cast<float>(steps));
  }
  return out;
}

Result<std::vector<float>> search_clip(const BlockMatrix& matrix, const Gram& gram, std::span<const float> ratios,
                                       ClipMetric metric, Products& products) {
  const auto count = static_cast<size_t>(matrix.n * matrix.groups());
  std::vector<float> best(count, 1.0f);
  std::vector<double> least;
  std::vector<double> error;
  std::vector<float> d;
  for (const float ratio : ratios) {
    TARE_TRY(check_interrupt("quantize"));
    const std::vector<float> clip(count, ratio);
    TARE_TRY(rounding_error(matrix, clip, d, products.pool()));
    TARE_TRY(group_errors(matrix, gram, metric, d.data(), error, products));
    if (least.empty()) {
      least = error;
      std::fill(best.begin(), best.end(), ratio);
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      if (error[i] < least[i]) {
        least[i] = error[i];
        best[i] = ratio;
      }
    }
  }
  return best;
}

Result<TransformReport> clip_ranges(Block& block, BlockData& data, const TransformContext& context) {
  TransformReport report{.name = "clip", .layer = block.layer};
  const ClipMetric metric = context.setting("clip.metric", 1) == 0 ? ClipMetric::kDiagonal : ClipMetric::kOutput;
  const bool has_rows = block.matrices[0].groups() == 1;
  const bool skip_qk = context.setting("clip.skip_qk", has_rows ? 0 : 1) != 0;
  double before = 0;
  double after = 0;
  int64_t clipped = 0;
  int64_t groups = 0;
  for (size_t i = 0; i < block.matrices.size(); ++i) {
    BlockMatrix& m = block.matrices[i];
    if (m.scheme.keep || m.scheme.grid.per_tensor) continue;
    if (m.scheme.grid.kind == GridKind::kForm) {
      report.notes.push_back(fmt::format("{}: ranges of {} stay", m.name, describe(m.scheme.grid)));
      continue;
    }
    const bool rows = m.groups() == 1;
    const bool qk = is_query_or_key(block, i);
    if (qk && (rows || skip_qk)) continue;
    const std::vector<float> ratios = clip_ratios(static_cast<int>(context.setting("clip.steps", rows ? 80 : 20)),
                                                  static_cast<float>(context.setting("clip.least", rows ? 0.2 : 0.5)));
    TARE_ASSIGN(const Gram* gram, data.gram(block, m.site));
    TARE_ASSIGN(m.clip, search_clip(m, *gram, ratios, metric, data.products()));
    std::vector<float> d;
    TARE_TRY(rounding_error(m, {}, d, data.pool()));
    TARE_ASSIGN(const double plain, output_error(*gram, d.data(), m.n, data.products()));
    TARE_TRY(rounding_error(m, m.clip, d, data.pool()));
    TARE_ASSIGN(const double now, output_error(*gram, d.data(), m.n, data.products()));
    // Groups are judged apart; together they may still lose.
    if (now > plain) {
      report.notes.push_back(fmt::format("{}: clipping made the output worse, ranges stay", m.name));
      m.clip.clear();
    } else {
      clipped += std::count_if(m.clip.begin(), m.clip.end(), [](float r) { return r != 1.0f; });
    }
    groups += m.n * m.groups();
    before += plain;
    after += std::min(now, plain);
  }
  if (!skip_qk && has_rows && !block.matrices[0].scheme.grid.per_tensor) {
    TARE_TRY(clip_queries_and_keys(block, data, clip_ratios(16, 0.2f), report));
  }
  report.numbers.emplace_back("error_before", before);
  report.numbers.emplace_back("error_after", after);
  report.summary = fmt::format("{} of {} ranges clipped", clipped, groups);
  return report;
}

}  // namespace tare::quantize
