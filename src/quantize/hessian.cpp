#include "quantize/hessian.h"

#include <algorithm>
#include <cmath>

namespace tare::quantize {

namespace {

constexpr int64_t kBlock = 128;

// In-place lower Cholesky of a small block a [n, n] (row stride `stride`) in double, then its inverse to `inverse`
// [n, n] packed, lower, zeros above. False when not positive definite.
bool factor_block(float* a, int64_t stride, int64_t n, float* inverse) {
  std::vector<double> l(static_cast<size_t>(n * n)), x(l.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = static_cast<double>(a[i * stride + j]);
      for (int64_t k = 0; k < j; ++k) sum -= l[static_cast<size_t>(i * n + k)] * l[static_cast<size_t>(j * n + k)];
      if (i == j) {
        if (!(sum > 0) || !std::isfinite(sum)) return false;
        l[static_cast<size_t>(i * n + i)] = std::sqrt(sum);
      } else {
        l[static_cast<size_t>(i * n + j)] = sum / l[static_cast<size_t>(j * n + j)];
      }
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    x[static_cast<size_t>(j * n + j)] = 1.0 / l[static_cast<size_t>(j * n + j)];
    for (int64_t i = j + 1; i < n; ++i) {
      double sum = 0;
      for (int64_t k = j; k < i; ++k) sum -= l[static_cast<size_t>(i * n + k)] * x[static_cast<size_t>(k * n + j)];
      x[static_cast<size_t>(i * n + j)] = sum / l[static_cast<size_t>(i * n + i)];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      a[i * stride + j] = j <= i ? static_cast<float>(l[static_cast<size_t>(i * n + j)]) : 0.0f;
      inverse[i * n + j] = j <= i ? static_cast<float>(x[static_cast<size_t>(i * n + j)]) : 0.0f;
    }
  }
  return true;
}

Error not_positive() {
  return make_error(ErrorKind::kNotFinite, "matrix is not positive definite");
}

}  // namespace

std::vector<float> Gram::diagonal() const {
  std::vector<float> out(static_cast<size_t>(k_));
  for (int64_t i = 0; i < k_; ++i) out[static_cast<size_t>(i)] = at(i, i);
  return out;
}

Status Gram::add(const float* x, int64_t m, Products& products) {
  transposed_.resize(static_cast<size_t>(k_ * m));
  transpose(x, k_, m, k_, transposed_.data(), products.pool());
  // Lower triangle by blocks of columns, each packed once; mirrored while it is added.
  constexpr int64_t kColumns = 384;
  product_.resize(static_cast<size_t>(k_ * std::min(kColumns, k_)));
  for (int64_t first = 0; first < k_; first += kColumns) {
    const int64_t columns = std::min(kColumns, k_ - first);
    const int64_t rows = k_ - first;
    TARE_TRY(products.multiply(transposed_.data() + first * m, m, rows, m, transposed_.data() + first * m, columns,
                               product_.data(), columns));
    products.pool().parallel_for(rows, 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = values_.data() + (first + i) * k_ + first;
        const float* add = product_.data() + i * columns;
        const int64_t stop = std::min(columns, i + 1);
        for (int64_t j = 0; j < stop; ++j) row[j] += add[j];
        for (int64_t j = 0; j < stop; ++j) values_[static_cast<size_t>((first + j) * k_ + first + i)] = row[j];
      }
    });
  }
  tokens_ += m;
  return {};
}

void Gram::scale(std::span<const float> factor) {
  for (int64_t i = 0; i < k_; ++i) {
    for (int64_t j = 0; j < k_; ++j) {
      values_[static_cast<size_t>(i * k_ + j)] *= factor[static_cast<size_t>(i)] * factor[static_cast<size_t>(j)];
    }
  }
}

void Gram::permute(std::span<const int32_t> order) {
  std::vector<float> moved(values_.size());
  for (int64_t i = 0; i < k_; ++i) {
    for (int64_t j = 0; j < k_; ++j) {
      moved[static_cast<size_t>(i * k_ + j)] = at(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
    }
  }
  values_.swap(moved);
}

Result<double> output_error(const Gram& gram, const float* d, int64_t n, Products& products) {
  const int64_t k = gram.k();
  constexpr int64_t kRows = 256;
  std::vector<float> product(static_cast<size_t>(kRows * k));
  std::vector<double> row_error(static_cast<size_t>(n));
  for (int64_t first = 0; first < n; first += kRows) {
    const int64_t rows = std::min(kRows, n - first);
    TARE_TRY(products.multiply(d + first * k, k, rows, k, gram.data(), k, product.data(), k));
    products.pool().parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) {
          sum += static_cast<double>(product[static_cast<size_t>(i * k + j)]) *
                 static_cast<double>(d[(first + i) * k + j]);
        }
        row_error[static_cast<size_t>(first + i)] = sum;
      }
    });
  }
  double total = 0;
  for (const double e : row_error) total += e;
  // A Gram is positive semidefinite; rounding can leave a tiny negative sum.
  return std::max(total, 0.0);
}

Result<std::vector<float>> inverse_factor(std::vector<float> h, int64_t k, Products& products) {
  ThreadPool& pool = products.pool();
  std::reverse(h.begin(), h.end());  // P H P: last row and column first
  std::vector<std::vector<float>> inverses;
  std::vector<float> panel, update;
  for (int64_t first = 0; first < k; first += kBlock) {
    const int64_t nb = std::min(kBlock, k - first);
    inverses.emplace_back(static_cast<size_t>(nb * nb));
    if (!factor_block(h.data() + first * k + first, k, nb, inverses.back().data())) return not_positive();
    const int64_t below = k - first - nb;
    if (below == 0) break;
    // L21 = A21 L11^-T
    panel.resize(static_cast<size_t>(below * nb));
    TARE_TRY(products.multiply(h.data() + (first + nb) * k + first, k, below, nb, inverses.back().data(), nb,
                               panel.data(), nb));
    for (int64_t i = 0; i < below; ++i) {
      std::copy_n(panel.data() + i * nb, nb, h.data() + (first + nb + i) * k + first);
    }
    // A22 -= L21 L21^T, by blocks of rows up to the diagonal
    constexpr int64_t kRows = 512;
    for (int64_t row = 0; row < below; row += kRows) {
      const int64_t rows = std::min(kRows, below - row);
      const int64_t columns = row + rows;
      update.resize(static_cast<size_t>(rows * columns));
      TARE_TRY(products.multiply(panel.data() + row * nb, nb, rows, nb, panel.data(), columns, update.data(), columns));
      pool.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float* out = h.data() + (first + nb + row + i) * k + first + nb;
          const float* take = update.data() + i * columns;
          for (int64_t j = 0; j < columns; ++j) out[j] -= take[j];
        }
      });
    }
  }
  // T = L^-T, upper, row by row of blocks of L^-1: X_i = -inv(L_ii) (L_i,<i X_<i), X_ii = inv(L_ii).
  std::vector<float> inverse_t(static_cast<size_t>(k * k));
  std::vector<float> sums, sums_t, rows_out, top;
  for (int64_t first = 0; first < k; first += kBlock) {
    const int64_t nb = std::min(kBlock, k - first);
    const std::vector<float>& diagonal = inverses[static_cast<size_t>(first / kBlock)];
    if (first > 0) {
      // top: the leading [first, first] of T, packed, whose row n holds column n of X.
      top.resize(static_cast<size_t>(first * first));
      pool.parallel_for(first, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) std::copy_n(inverse_t.data() + i * k, first, top.data() + i * first);
      });
      sums.resize(static_cast<size_t>(nb * first));
      sums_t.resize(sums.size());
      rows_out.resize(sums.size());
      TARE_TRY(products.multiply(h.data() + first * k, k, nb, first, top.data(), first, sums.data(), first));
      transpose(sums.data(), first, nb, first, sums_t.data(), pool);
      TARE_TRY(products.multiply(diagonal.data(), nb, nb, nb, sums_t.data(), first, rows_out.data(), first));
      for (int64_t i = 0; i < nb; ++i) {
        for (int64_t j = 0; j < first; ++j) {
          inverse_t[static_cast<size_t>(j * k + first + i)] = -rows_out[static_cast<size_t>(i * first + j)];
        }
      }
    }
    for (int64_t i = 0; i < nb; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        inverse_t[static_cast<size_t>((first + j) * k + first + i)] = diagonal[static_cast<size_t>(i * nb + j)];
      }
    }
  }
  // U[a][b] = X[k-1-a][k-1-b] = T[k-1-b][k-1-a]
  std::vector<float>& u = h;  // its factor is used up
  pool.parallel_for(k, 16, [&](int64_t begin, int64_t end) {
    for (int64_t a = begin; a < end; ++a) {
      std::fill_n(u.begin() + a * k, a, 0.0f);
      for (int64_t b = a; b < k; ++b) {
        u[static_cast<size_t>(a * k + b)] = inverse_t[static_cast<size_t>((k - 1 - b) * k + k - 1 - a)];
      }
    }
  });
  for (int64_t i = 0; i < k; ++i) {
    if (!std::isfinite(u[static_cast<size_t>(i * k + i)]) || !(u[static_cast<size_t>(i * k + i)] > 0)) {
      return not_positive();
    }
  }
  return h;
}

}  // namespace tare::quantize
