#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/quantized_tensor.h"

namespace tare::eval {

/// What one choice of shared scales would cost a matrix: symmetric integers, step = 2 * amax / (2^bits - 1) of the
/// numbers that share a scale.
struct GranularityBound {
  std::string name;  // "tensor", "channel", "group 128", "group 32"
  int bits = 4;
  double max_error = 0;     // no weight is off by more: half of the widest step
  double relative_rms = 0;  // sqrt(mean(step^2 / 12)) / rms(w): expected of rounding errors spread evenly
  double bpw = 0;           // with one f16 scale for each
};

/// The distribution of a matrix [N, K], dequantized, and what scales of each granularity would do to it.
struct WeightHistogram {
  static constexpr int kBins = 121;
  int64_t n = 0, k = 0;
  double mean = 0, rms = 0, amax = 0;
  double kurtosis = 0;                // 3 for a normal distribution
  double outlier_ratio = 0;           // amax / rms
  double outlier_share = 0;           // of weights beyond 6 rms
  double worst_column = 0;            // largest rms of an input column, over the median of all
  std::array<int64_t, kBins> bins{};  // over [-amax, amax]
  std::vector<GranularityBound> bounds;
  std::string suggestion;
  std::string why;
};

/// Errors: a weight that is no matrix; what decoding says.
Result<WeightHistogram> weight_histogram(const tensor::Weight& weight);

/// A picture of its own: bars on a logarithmic scale, the numbers beside them. SVG 1.1 without outside references.
std::string histogram_svg(const std::string& name, const WeightHistogram& histogram);

}  // namespace tare::eval
