#include "eval/weight_histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "eval/markup.h"

namespace tare::eval {

namespace {

// Largest magnitudes of runs of `columns` in each of `rows` rows taken together.
std::vector<float> largest(const std::vector<float>& w, int64_t n, int64_t k, int64_t rows, int64_t columns) {
  std::vector<float> out;
  for (int64_t r = 0; r < n; r += rows) {
    for (int64_t c = 0; c < k; c += columns) {
      float amax = 0;
      for (int64_t i = r; i < std::min(n, r + rows); ++i) {
        for (int64_t j = c; j < std::min(k, c + columns); ++j)
          amax = std::max(amax, std::abs(w[static_cast<size_t>(i * k + j)]));
      }
      out.push_back(amax);
    }
  }
  return out;
}

GranularityBound bound(const std::vector<float>& w, const WeightHistogram& h, std::string name, int bits, int64_t rows,
                       int64_t columns) {
  GranularityBound out{.name = std::move(name), .bits = bits};
  const std::vector<float> amax = largest(w, h.n, h.k, rows, columns);
  const double steps = static_cast<double>((1 << bits) - 1);
  double squares = 0;
  size_t at = 0;
  for (int64_t r = 0; r < h.n; r += rows) {
    for (int64_t c = 0; c < h.k; c += columns) {
      const double step = 2 * static_cast<double>(amax[at++]) / steps;
      const auto count = static_cast<double>(std::min(rows, h.n - r) * std::min(columns, h.k - c));
      out.max_error = std::max(out.max_error, step / 2);
      squares += count * step * step / 12;
    }
  }
  const auto weights = static_cast<double>(h.n * h.k);
  out.relative_rms = h.rms > 0 ? std::sqrt(squares / weights) / h.rms : 0;
  out.bpw = bits + 16.0 * static_cast<double>(amax.size()) / weights;
  return out;
}

// The coarsest 4-bit form whose expected error stays below an eighth of the weights' own size; beyond, 8 bits.
void suggest(WeightHistogram& h) {
  constexpr double kLimit = 0.125;
  for (const GranularityBound& b : h.bounds) {
    if (b.bits != 4 || b.relative_rms > kLimit) continue;
    h.suggestion = fmt::format("4 bits, {}", b.name);
    h.why = fmt::format("expected error {:.1f}% of the weights' size, at most {:.1f}% is asked", 100 * b.relative_rms,
                        100 * kLimit);
    return;
  }
  for (const GranularityBound& b : h.bounds) {
    if (b.bits != 8 || b.relative_rms > kLimit) continue;
    h.suggestion = fmt::format("8 bits, {}", b.name);
    h.why = "outliers make every 4-bit form coarser than asked";
    return;
  }
  h.suggestion = "leave it as it is";
  h.why = "outliers make every form coarser than asked";
}

}  // namespace

Result<WeightHistogram> weight_histogram(const tensor::Weight& weight) {
  const tensor::Shape shape = tensor::shape_of(weight);
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
    return invalid_input("no matrix", {.expected = "[N, K]", .found = tensor::shape_text(shape)});
  }
  TARE_ASSIGN(const std::vector<float> w, tensor::to_f32(weight));
  WeightHistogram h{.n = shape[0], .k = shape[1]};
  const auto count = static_cast<double>(w.size());
  double sum = 0, squares = 0;
  std::vector<double> columns(static_cast<size_t>(h.k));
  for (size_t i = 0; i < w.size(); ++i) {
    const double v = w[i];
    sum += v;
    squares += v * v;
    columns[i % static_cast<size_t>(h.k)] += v * v;
    h.amax = std::max(h.amax, std::abs(v));
  }
  h.mean = sum / count;
  h.rms = std::sqrt(squares / count);
  h.outlier_ratio = h.rms > 0 ? h.amax / h.rms : 0;
  double fourth = 0, variance = 0;
  int64_t outliers = 0;
  for (const float v : w) {
    const double d = static_cast<double>(v) - h.mean;
    variance += d * d;
    fourth += d * d * d * d;
    outliers += std::abs(static_cast<double>(v)) > 6 * h.rms ? 1 : 0;
    const double place = h.amax > 0 ? (static_cast<double>(v) / h.amax + 1) / 2 * WeightHistogram::kBins : 0;
    ++h.bins[static_cast<size_t>(std::clamp(place, 0.0, WeightHistogram::kBins - 1.0))];
  }
  h.outlier_share = static_cast<double>(outliers) / count;
  h.kurtosis = variance > 0 ? fourth / count / ((variance / count) * (variance / count)) : 0;
  std::nth_element(columns.begin(), columns.begin() + h.k / 2, columns.end());
  const double median = columns[static_cast<size_t>(h.k / 2)];
  h.worst_column = median > 0 ? std::sqrt(*std::max_element(columns.begin(), columns.end()) / median) : 0;
  for (const int bits : {4, 8}) {
    h.bounds.push_back(bound(w, h, "tensor", bits, h.n, h.k));
    h.bounds.push_back(bound(w, h, "channel", bits, 1, h.k));
    for (const int64_t group : {128, 64, 32}) {
      if (group < h.k) h.bounds.push_back(bound(w, h, fmt::format("group {}", group), bits, 1, group));
    }
  }
  suggest(h);
  return h;
}

std::string histogram_svg(const std::string& name, const WeightHistogram& h) {
  constexpr int kLeft = 60, kTop = 60, kWidth = 605, kHeight = 240;
  const std::string title = escape_markup(name);
  const int total = kTop + kHeight + 70 + 18 * static_cast<int>(h.bounds.size() + 2);
  std::string out = fmt::format(
      R"svg(<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{}" font-family="sans-serif" font-size="12">)svg"
      "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      total);
  out += fmt::format(R"svg(<text x="{}" y="24" font-size="15">{} [{}, {}]</text>)svg"
                     "\n",
                     kLeft, title, h.n, h.k);
  out += fmt::format(
      R"svg(<text x="{}" y="44">rms {:.4g}, largest {:.4g} ({:.1f} rms), kurtosis {:.1f}, {:.4f}% beyond 6 rms</text>)svg"
      "\n",
      kLeft, h.rms, h.amax, h.outlier_ratio, h.kurtosis, 100 * h.outlier_share);
  const double most = std::log10(1.0 + static_cast<double>(*std::max_element(h.bins.begin(), h.bins.end())));
  for (int i = 0; i < WeightHistogram::kBins; ++i) {
    const double share = most > 0 ? std::log10(1.0 + static_cast<double>(h.bins[static_cast<size_t>(i)])) / most : 0;
    const double height = share * kHeight;
    out += fmt::format(R"svg(<rect x="{}" y="{:.1f}" width="4" height="{:.1f}" fill="#3b6ea5"/>)svg"
                       "\n",
                       kLeft + 5 * i, kTop + kHeight - height, height);
  }
  out += fmt::format(R"svg(<line x1="{0}" y1="{2}" x2="{1}" y2="{2}" stroke="black"/>)svg"
                     "\n",
                     kLeft, kLeft + kWidth, kTop + kHeight);
  for (const auto& [x, value] :
       {std::pair{kLeft, -h.amax}, std::pair{kLeft + kWidth / 2, 0.0}, std::pair{kLeft + kWidth, h.amax}}) {
    out += fmt::format(R"svg(<text x="{}" y="{}" text-anchor="middle">{:.3g}</text>)svg"
                       "\n",
                       x, kTop + kHeight + 16, value);
  }
  out +=
      fmt::format(R"svg(<text x="14" y="{}" transform="rotate(-90 14 {})" text-anchor="middle">weights (log)</text>)svg"
                  "\n",
                  kTop + kHeight / 2, kTop + kHeight / 2);
  int y = kTop + kHeight + 48;
  out += fmt::format(
      R"svg(<text x="{}" y="{}" font-weight="bold">scales | bits | bits per weight | expected error | largest error</text>)svg"
      "\n",
      kLeft, y);
  for (const GranularityBound& b : h.bounds) {
    y += 18;
    out += fmt::format(R"svg(<text x="{}" y="{}">{} | {} | {:.3f} | {:.2f}% | {:.3g}</text>)svg"
                       "\n",
                       kLeft, y, b.name, b.bits, b.bpw, 100 * b.relative_rms, b.max_error);
  }
  out += fmt::format(R"svg(<text x="{}" y="{}" font-weight="bold">suggestion: {} ({})</text>)svg"
                     "\n</svg>\n",
                     kLeft, y + 24, h.suggestion, h.why);
  return out;
}

}  // namespace tare::eval
