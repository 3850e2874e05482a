#include "quantize/transforms/hadamard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tare::quantize {

namespace {

// The finite field of q = p^e elements: an element is the number whose base-p digits are its polynomial's coefficients.
class Field {
 public:
  Field(int64_t p, int64_t e) : p_(p), e_(e), q_(1) {
    for (int64_t i = 0; i < e; ++i) q_ *= p;
    if (e > 1) find_modulus();
  }
  int64_t size() const { return q_; }

  int64_t subtract(int64_t a, int64_t b) const {
    int64_t out = 0;
    for (int64_t place = 1; place < q_; place *= p_) {
      out += (a / place % p_ - b / place % p_ + p_) % p_ * place;
    }
    return out;
  }

  int64_t multiply(int64_t a, int64_t b) const {
    if (e_ == 1) return a * b % p_;
    std::vector<int64_t> product(static_cast<size_t>(2 * e_ - 1));
    for (int64_t i = 0; i < e_; ++i) {
      for (int64_t j = 0; j < e_; ++j) product[static_cast<size_t>(i + j)] += digit(a, i) * digit(b, j);
    }
    // x^e = -(lower part of the modulus)
    for (int64_t i = 2 * e_ - 2; i >= e_; --i) {
      const int64_t top = product[static_cast<size_t>(i)] % p_;
      for (int64_t j = 0; j < e_; ++j) {
        product[static_cast<size_t>(i - e_ + j)] += top * (p_ - modulus_[static_cast<size_t>(j)]);
      }
      product[static_cast<size_t>(i)] = 0;
    }
    int64_t out = 0;
    for (int64_t i = e_ - 1; i >= 0; --i) out = out * p_ + product[static_cast<size_t>(i)] % p_;
    return out;
  }

  // chi[x]: 0 for 0, 1 for squares, -1 for the rest.
  std::vector<int8_t> quadratic_character() const {
    std::vector<int8_t> chi(static_cast<size_t>(q_), int8_t{-1});
    for (int64_t x = 1; x < q_; ++x) chi[static_cast<size_t>(multiply(x, x))] = 1;
    chi[0] = 0;
    return chi;
  }

 private:
  int64_t digit(int64_t a, int64_t i) const {
    for (; i > 0; --i) a /= p_;
    return a % p_;
  }

  // The least monic polynomial of degree e for which x generates all q - 1 units (it is irreducible then).
  void find_modulus() {
    for (int64_t candidate = 1; candidate < q_; ++candidate) {
      modulus_.clear();
      for (int64_t i = 0; i < e_; ++i) modulus_.push_back(digit(candidate, i));
      int64_t power = p_;  // x
      int64_t order = 1;
      while (power != 1 && power != 0 && order < q_) {
        power = multiply(power, p_);
        ++order;
      }
      if (power == 1 && order == q_ - 1) return;
    }
  }

  int64_t p_, e_, q_;
  std::vector<int64_t> modulus_;  // coefficients below the leading 1
};

// q = p^e; {0, 0} when q is no prime power.
std::pair<int64_t, int64_t> prime_power(int64_t q) {
  if (q < 2) return {0, 0};
  int64_t p = 2;
  while (p * p <= q && q % p != 0) ++p;
  if (q % p != 0) p = q;
  int64_t e = 0;
  for (; q % p == 0; q /= p) ++e;
  return q == 1 ? std::pair{p, e} : std::pair<int64_t, int64_t>{0, 0};
}

// The construction that gives an order: q and which of the two.
struct Paley {
  int64_t q = 0;
  bool second = false;
};
std::optional<Paley> paley_of(int64_t order) {
  if (order < 4 || order % 4 != 0) return std::nullopt;
  if (prime_power(order - 1).first != 0) return Paley{order - 1, false};  // order % 4 == 0, so q = 3 mod 4
  const int64_t q = order / 2 - 1;
  if (q % 4 == 1 && prime_power(q).first != 0) return Paley{q, true};
  return std::nullopt;
}

// Paley orders beyond this are no use: the outer part costs k steps an element.
constexpr int64_t kLargestOuter = 4096;

}  // namespace

Result<std::vector<int8_t>> paley_matrix(int64_t order) {
  if (order == 1) return std::vector<int8_t>{1};
  const std::optional<Paley> paley = paley_of(order);
  if (!paley || order > kLargestOuter) {
    return unsupported(
        "no Hadamard matrix of this order is known here",
        {.expected = "q + 1 or 2 (q + 1) for a fitting prime power q", .found = fmt::format("{}", order)});
  }
  const auto [p, e] = prime_power(paley->q);
  const Field field(p, e);
  const std::vector<int8_t> chi = field.quadratic_character();
  const int64_t q = paley->q;
  const int64_t core = q + 1;
  // C = [[0, 1^T], [+-1, J]], J[i][j] = chi(i - j)
  std::vector<int8_t> c(static_cast<size_t>(core * core));
  for (int64_t i = 0; i < q; ++i) {
    c[static_cast<size_t>(i + 1)] = 1;
    c[static_cast<size_t>((i + 1) * core)] = paley->second ? 1 : -1;
    for (int64_t j = 0; j < q; ++j) {
      c[static_cast<size_t>((i + 1) * core + j + 1)] = chi[static_cast<size_t>(field.subtract(i, j))];
    }
  }
  if (!paley->second) {
    for (int64_t i = 0; i < core; ++i) ++c[static_cast<size_t>(i * core + i)];
    return c;
  }
  // 0 -> [[1, -1], [-1, -1]], +-1 -> +-[[1, 1], [1, -1]]
  std::vector<int8_t> h(static_cast<size_t>(order * order));
  constexpr int8_t kZero[2][2] = {{1, -1}, {-1, -1}};
  constexpr int8_t kOne[2][2] = {{1, 1}, {1, -1}};
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      const int8_t value = c[static_cast<size_t>(i / 2 * core + j / 2)];
      h[static_cast<size_t>(i * order + j)] =
          static_cast<int8_t>(value == 0 ? kZero[i % 2][j % 2] : value * kOne[i % 2][j % 2]);
    }
  }
  return h;
}

Result<HadamardTransform> HadamardTransform::make(int64_t n, std::optional<uint64_t> sign_seed) {
  HadamardTransform out;
  out.n_ = n;
  int64_t odd = std::max<int64_t>(n, 1);
  int64_t twos = 1;
  for (; odd % 2 == 0; odd /= 2) twos *= 2;
  int64_t outer = 0;
  if (odd == 1) outer = 1;
  for (int64_t factor = 4; outer == 0 && factor <= twos && odd * factor <= kLargestOuter; factor *= 2) {
    if (paley_of(odd * factor)) outer = odd * factor;
  }
  if (n < 1 || outer == 0) {
    return unsupported(
        "no Hadamard matrix is known here for this size",
        {.expected =
             "2^m, or 2^m times an order of Paley's (12, 20, 28, 36, 44, 52, 60, 76, 84, 108, 140, 148, 344, ...)",
         .found = fmt::format("{}", n),
         .hint = "use a recipe without rotation"});
  }
  out.outer_ = outer;
  out.inner_ = n / outer;
  TARE_ASSIGN(out.outer_matrix_, paley_matrix(outer));
  out.scale_ = 1.0 / std::sqrt(static_cast<double>(n));
  if (sign_seed) {
    std::mt19937_64 random(*sign_seed);
    for (int64_t i = 0; i < n; ++i) out.signs_.push_back((random() >> 63) != 0 ? -1.0 : 1.0);
  }
  return out;
}

std::string HadamardTransform::describe() const {
  const std::string text = outer_ == 1 ? fmt::format("{}", inner_) : fmt::format("{} * {}", outer_, inner_);
  return signs_.empty() ? text : text + " with random signs";
}

namespace {

// Sylvester's H along each of `rows` runs of `length` (a power of two); symmetric, so it is its own transpose.
void butterflies(double* x, int64_t rows, int64_t length) {
  for (int64_t row = 0; row < rows; ++row) {
    double* run = x + row * length;
    for (int64_t half = 1; half < length; half *= 2) {
      for (int64_t first = 0; first < length; first += 2 * half) {
        for (int64_t i = first; i < first + half; ++i) {
          const double a = run[i];
          const double b = run[i + half];
          run[i] = a + b;
          run[i + half] = a - b;
        }
      }
    }
  }
}

}  // namespace

void HadamardTransform::apply(double* x) const {
  if (!signs_.empty()) {
    for (int64_t i = 0; i < n_; ++i) x[i] *= signs_[static_cast<size_t>(i)];
  }
  butterflies(x, outer_, inner_);
  if (outer_ > 1) {
    // y[b, :] = sum_a H_k[b, a] x[a, :]
    std::vector<double> y(static_cast<size_t>(n_), 0.0);
    for (int64_t b = 0; b < outer_; ++b) {
      double* out = y.data() + b * inner_;
      for (int64_t a = 0; a < outer_; ++a) {
        const double sign = outer_matrix_[static_cast<size_t>(b * outer_ + a)];
        const double* in = x + a * inner_;
        for (int64_t i = 0; i < inner_; ++i) out[i] += sign * in[i];
      }
    }
    std::copy(y.begin(), y.end(), x);
  }
  for (int64_t i = 0; i < n_; ++i) x[i] *= scale_;
}

void HadamardTransform::apply_transposed(double* x) const {
  butterflies(x, outer_, inner_);
  if (outer_ > 1) {
    std::vector<double> y(static_cast<size_t>(n_), 0.0);
    for (int64_t a = 0; a < outer_; ++a) {
      const double* in = x + a * inner_;
      for (int64_t b = 0; b < outer_; ++b) {
        const double sign = outer_matrix_[static_cast<size_t>(a * outer_ + b)];
        double* out = y.data() + b * inner_;
        for (int64_t i = 0; i < inner_; ++i) out[i] += sign * in[i];
      }
    }
    std::copy(y.begin(), y.end(), x);
  }
  for (int64_t i = 0; i < n_; ++i) x[i] *= signs_.empty() ? scale_ : scale_ * signs_[static_cast<size_t>(i)];
}

void HadamardTransform::apply_to_rows(float* w, int64_t rows, int64_t columns, ThreadPool& pool) const {
  pool.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>(n_));
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t first = 0; first + n_ <= columns; first += n_) {
        float* run = w + row * columns + first;
        std::copy(run, run + n_, x.begin());
        apply(x.data());
        for (int64_t i = 0; i < n_; ++i) run[i] = static_cast<float>(x[static_cast<size_t>(i)]);
      }
    }
  });
}

void HadamardTransform::apply_to_columns(float* w, int64_t rows, int64_t columns, ThreadPool& pool) const {
  constexpr int64_t kTile = 8;  // columns gathered together: a cache line of f32 holds 16
  pool.parallel_for((columns + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>(n_ * kTile));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first_column = tile * kTile;
      const int64_t count = std::min(kTile, columns - first_column);
      for (int64_t first = 0; first + n_ <= rows; first += n_) {
        for (int64_t i = 0; i < n_; ++i) {
          const float* row = w + (first + i) * columns + first_column;
          for (int64_t c = 0; c < count; ++c) x[static_cast<size_t>(c * n_ + i)] = static_cast<double>(row[c]);
        }
        for (int64_t c = 0; c < count; ++c) apply(x.data() + c * n_);
        for (int64_t i = 0; i < n_; ++i) {
          float* row = w + (first + i) * columns + first_column;
          for (int64_t c = 0; c < count; ++c) row[c] = static_cast<float>(x[static_cast<size_t>(c * n_ + i)]);
        }
      }
    }
  });
}

}  // namespace tare::quantize
