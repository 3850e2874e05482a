#include "quantize/transforms/fold.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tare::quantize {

using model::Site;

namespace {

// Which factor channel c of an input uses.
int64_t factor_of(const Block& block, Site site, int64_t c) {
  if (site != Site::kOut) return c;
  const model::Architecture& arch = *block.arch;
  const int64_t shared = arch.heads / arch.kv_heads;
  return c / arch.head_dim / shared * arch.head_dim + c % arch.head_dim;
}

std::vector<float>& norm_before(Block& block, Site site) {
  return site == Site::kQkv ? block.attention_norm_in : block.mlp_norm_in;
}

}  // namespace

int64_t factor_count(const Block& block, Site site) {
  return site == Site::kOut ? block.arch->kv_size() : block.width(site);
}

Status can_fold(const Block& block, Site site) {
  const bool from_norm = site == Site::kQkv || site == Site::kGateUp;
  const std::string& norm = site == Site::kQkv ? block.arch->attention_norm_in : block.arch->mlp_norm_in;
  if (from_norm && norm.empty()) {
    return unsupported("no norm stands before these matrices, so their input cannot be scaled",
                       {.where = block.matrices[block.reading(site).front()].name, .found = block.arch->family});
  }
  return {};
}

void scale_columns(float* w, int64_t n, int64_t k, std::span<const float> factors) {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) w[row * k + i] *= factors[static_cast<size_t>(i)];
  }
}

void scale_rows(const RoleView& view, std::span<const float> factors) {
  for (int64_t row = 0; row < view.n; ++row) {
    const float factor = factors[static_cast<size_t>(row)];
    for (int64_t i = 0; i < view.k; ++i) view.w[row * view.k + i] *= factor;
    if (view.bias) view.bias[row] *= factor;
  }
}

Status fold_factors(Block& block, Site site, std::span<const float> factors) {
  TARE_TRY(can_fold(block, site));
  for (const float f : factors) {
    if (!(f > 0) || !std::isfinite(f) || !std::isfinite(1.0f / f)) {
      return make_error(ErrorKind::kNotFinite, "smoothing factor out of range", {.found = fmt::format("{}", f)});
    }
  }
  const std::vector<float> wide = spread_factors(block, site, factors);
  for (const size_t i : block.reading(site)) {
    BlockMatrix& m = block.matrices[i];
    scale_columns(m.w.data(), m.n, m.k, wide);
  }
  if (site == Site::kOut || site == Site::kDown) {
    std::vector<float> inverse;
    for (const float f : factors) inverse.push_back(1.0f / f);
    scale_rows(block.view(site == Site::kOut ? Role::kV : Role::kUp), inverse);
  } else {
    // A norm may multiply by 1 + w.
    const float offset = block.arch->norm_plus_one ? 1.0f : 0.0f;
    std::vector<float>& norm = norm_before(block, site);
    for (size_t i = 0; i < norm.size(); ++i) norm[i] = (norm[i] + offset) / factors[i] - offset;
  }
  block.touch();
  return {};
}

std::vector<float> spread_factors(const Block& block, Site site, std::span<const float> factors) {
  std::vector<float> out(static_cast<size_t>(block.width(site)));
  for (size_t c = 0; c < out.size(); ++c) {
    out[c] = factors[static_cast<size_t>(factor_of(block, site, static_cast<int64_t>(c)))];
  }
  return out;
}

std::vector<float> per_factor_max(const Block& block, Site site, std::span<const float> values) {
  std::vector<float> out(static_cast<size_t>(factor_count(block, site)), 0.0f);
  for (size_t c = 0; c < values.size(); ++c) {
    float& most = out[static_cast<size_t>(factor_of(block, site, static_cast<int64_t>(c)))];
    most = std::max(most, values[c]);
  }
  return out;
}

std::vector<float> column_absmax(const Block& block, Site site) {
  std::vector<float> out(static_cast<size_t>(block.width(site)), 0.0f);
  for (const size_t i : block.reading(site)) {
    const BlockMatrix& m = block.matrices[i];
    for (int64_t row = 0; row < m.n; ++row) {
      for (int64_t c = 0; c < m.k; ++c) {
        float& most = out[static_cast<size_t>(c)];
        most = std::max(most, std::abs(m.w[static_cast<size_t>(row * m.k + c)]));
      }
    }
  }
  return out;
}

std::vector<float> column_share(const Block& block, Site site) {
  std::vector<double> sums(static_cast<size_t>(block.width(site)), 0.0);
  int64_t rows = 0;
  for (const size_t i : block.reading(site)) {
    const BlockMatrix& m = block.matrices[i];
    const int64_t width = m.scheme.grid.group_width(m.k);
    for (int64_t row = 0; row < m.n; ++row) {
      for (int64_t first = 0; first < m.k; first += width) {
        const int64_t last = std::min(first + width, m.k);
        const float* w = m.w.data() + row * m.k;
        float most = 0;
        for (int64_t c = first; c < last; ++c) most = std::max(most, std::abs(w[c]));
        if (most == 0) continue;
        for (int64_t c = first; c < last; ++c) {
          sums[static_cast<size_t>(c)] += static_cast<double>(std::abs(w[c]) / most);
        }
      }
    }
    rows += m.n;
  }
  std::vector<float> out;
  for (const double sum : sums)
    out.push_back(static_cast<float>(sum / static_cast<double>(std::max<int64_t>(rows, 1))));
  return out;
}

std::vector<float> smoothing_factors(std::span<const float> x, std::span<const float> w, double alpha, double beta) {
  std::vector<float> out;
  for (size_t i = 0; i < x.size(); ++i) {
    const double factor = std::pow(static_cast<double>(x[i]), alpha) / std::pow(static_cast<double>(w[i]), beta);
    // A dead channel has nothing to move.
    out.push_back(x[i] == 0 || w[i] == 0 ? 1.0f : static_cast<float>(factor));
  }
  const bool usable =
      std::all_of(out.begin(), out.end(), [](float f) { return f > 0 && std::isfinite(f) && std::isfinite(1 / f); });
  if (!usable) std::fill(out.begin(), out.end(), 1.0f);
  return out;
}

}  // namespace tare::quantize
