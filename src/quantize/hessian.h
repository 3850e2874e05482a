#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "quantize/products.h"

namespace tare::quantize {

/// G = sum over tokens of x x^T, [K, K], of what one matrix reads. Symmetric, full storage. Sums run in the order in
/// which tokens are added, so the bytes depend on nothing else.
class Gram {
 public:
  Gram() = default;
  explicit Gram(int64_t k) : k_(k), values_(static_cast<size_t>(k * k)) {}

  int64_t k() const { return k_; }
  int64_t tokens() const { return tokens_; }
  const float* data() const { return values_.data(); }
  float at(int64_t i, int64_t j) const { return values_[static_cast<size_t>(i * k_ + j)]; }
  std::vector<float> diagonal() const;

  /// x [M, K] packed.
  Status add(const float* x, int64_t m, Products& products);

  /// What the Gram becomes when the input changes: x'[k] = x[k] * factor[k]; x'[k] = x[order[k]].
  void scale(std::span<const float> factor);
  void permute(std::span<const int32_t> order);

 private:
  int64_t k_ = 0;
  int64_t tokens_ = 0;
  std::vector<float> values_;
  std::vector<float> transposed_, product_;  // scratch
};

/// sum over rows of d G d^T: the squared error of the outputs when the weights [N, K] are off by d. In order.
Result<double> output_error(const Gram& gram, const float* d, int64_t n, Products& products);

/// Upper U with H^-1 = U^T U for a positive definite H [K, K] (packed, row-major), by a blocked factorization: blocks
/// in double, products in f32. Errors: kNotFinite when H is not positive definite. With H = R R^T, R upper (Cholesky
/// from the last row up), U = R^-1.
Result<std::vector<float>> inverse_factor(std::vector<float> h, int64_t k, Products& products);

}  // namespace tare::quantize
