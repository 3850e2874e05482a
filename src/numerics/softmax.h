#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace tare::numerics {

/// log sum exp of one position's logits, in double; NaN or inf where one of them is.
inline double log_sum_exp(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
  return static_cast<double>(top) + std::log(sum);
}

/// KL(softmax(reference) || softmax(other)) in nats, over one position; both spans have the same length.
/// reference_norm: log_sum_exp(reference), for one reference that many are held against.
inline double kl_divergence(std::span<const float> reference, double reference_norm, std::span<const float> other) {
  const double other_norm = log_sum_exp(other);
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - reference_norm;
    kl += std::exp(log_p) * (log_p - (static_cast<double>(other[i]) - other_norm));
  }
  return kl;
}

inline double kl_divergence(std::span<const float> reference, std::span<const float> other) {
  return kl_divergence(reference, log_sum_exp(reference), other);
}

}  // namespace tare::numerics
