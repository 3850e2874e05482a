#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"

namespace tare::quantize {

/// A Hadamard matrix H [order, order] of +1 and -1 with H H^T = order * I, by Paley's two constructions over any finite
/// field (order = q + 1 for a prime power q = 3 mod 4, order = 2 (q + 1) for q = 1 mod 4), and order 1.
/// Errors: kUnsupported when neither construction gives this order (Sylvester's powers of two are HadamardTransform's
/// own). Source: R. E. A. C. Paley, On orthogonal matrices, 1933.
Result<std::vector<int8_t>> paley_matrix(int64_t order);

/// The orthogonal matrix Q = (H_k^T kron H_{2^m}) / sqrt(n), [n, n], n = k 2^m, applied to rows without being built:
/// k^2 2^m + n m steps instead of n^2. With a seed, Q = diag(+-1) Q: signs on the input (QuaRot's randomized form;
/// signs behind H would only flip outputs and change no rounding). Sums in double.
class HadamardTransform {
 public:
  /// The least k that has a Paley matrix is taken. Errors: kUnsupported, naming n, when no split exists.
  static Result<HadamardTransform> make(int64_t n, std::optional<uint64_t> sign_seed = std::nullopt);

  int64_t n() const { return n_; }
  int64_t outer() const { return outer_; }  // k
  std::string describe() const;             // "36 * 16"

  /// x [n] <- x Q; x <- x Q^T.
  void apply(double* x) const;
  void apply_transposed(double* x) const;

  /// Each run of n along a row: w [rows, columns] <- w (I kron Q). columns: a multiple of n.
  void apply_to_rows(float* w, int64_t rows, int64_t columns, ThreadPool& pool) const;
  /// Each run of n down a column: w [rows, columns] <- (I kron Q)^T w. rows: a multiple of n.
  void apply_to_columns(float* w, int64_t rows, int64_t columns, ThreadPool& pool) const;

 private:
  int64_t n_ = 1, outer_ = 1, inner_ = 1;
  std::vector<int8_t> outer_matrix_;  // [k, k]
  std::vector<double> signs_;         // [n] or empty
  double scale_ = 1;
};

}  // namespace tare::quantize
