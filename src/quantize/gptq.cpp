#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tare::quantize {

namespace {

constexpr int64_t kBlock = 128;

// G with damping, columns in `order`, as a dense [K, K]; columns without activity become unit vectors.
std::vector<float> damped(const Gram& gram, const std::vector<int32_t>& order, double damping, double mean) {
  const int64_t k = gram.k();
  std::vector<float> h(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) {
    const int32_t from = order[static_cast<size_t>(i)];
    for (int64_t j = 0; j < k; ++j) h[static_cast<size_t>(i * k + j)] = gram.at(from, order[static_cast<size_t>(j)]);
    float& diagonal = h[static_cast<size_t>(i * k + i)];
    diagonal = diagonal > 0 ? diagonal + static_cast<float>(damping * mean) : static_cast<float>(mean);
  }
  return h;
}

}  // namespace

Result<InverseFactor> InverseFactor::make(const Gram& gram, const GptqOptions& options, Products& products) {
  InverseFactor out;
  const int64_t k = gram.k();
  const std::vector<float> diagonal = gram.diagonal();
  out.order.resize(static_cast<size_t>(k));
  std::iota(out.order.begin(), out.order.end(), 0);
  if (options.act_order) {
    std::stable_sort(out.order.begin(), out.order.end(), [&](int32_t a, int32_t b) {
      return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
    });
  }
  double mean = 0;
  for (const float d : diagonal) {
    mean += static_cast<double>(d);
    out.dead_columns += d > 0 ? 0 : 1;
  }
  mean /= static_cast<double>(std::max<int64_t>(k, 1));
  if (!(mean > 0) || !std::isfinite(mean)) return out;
  // Doubling from 1 % passes 1 within 8 steps; a matrix that needs more than its own mean is not data any more.
  for (double damping = options.damping; damping <= 4; damping *= 2) {
    auto factor = inverse_factor(damped(gram, out.order, damping, mean), k, products);
    if (factor.ok()) {
      out.u = std::move(factor).value();
      out.damping = damping;
      out.added = static_cast<float>(damping * mean);
      break;
    }
    if (factor.error().kind != ErrorKind::kNotFinite) return std::move(factor).error();
  }
  return out;
}

Result<GptqResult> gptq(const ChosenGrid& grid, const float* w, const Gram& gram, const GptqOptions& options,
                        Products& products) {
  TARE_ASSIGN(const InverseFactor factor, InverseFactor::make(gram, options, products));
  return gptq(grid, w, factor, products);
}

Result<GptqResult> gptq(const ChosenGrid& grid, const float* w, const InverseFactor& factor, Products& products) {
  const int64_t n = grid.n();
  const int64_t k = grid.k();
  ThreadPool& pool = products.pool();
  const std::vector<int32_t>& order = factor.order;
  const std::vector<float>& u = factor.u;
  GptqResult out{.damping = factor.damping, .dead_columns = factor.dead_columns};
  out.codes.resize(static_cast<size_t>(n * k));
  if (out.damping < 0) {
    pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) grid.encode_row(row, w + row * k, out.codes.data() + row * k);
    });
    return out;
  }

  // Working copy in the order of the walk; what a block's rounding costs reaches the columns behind it in one product.
  std::vector<float> work(static_cast<size_t>(n * k));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < k; ++j) {
        work[static_cast<size_t>(row * k + j)] = w[row * k + order[static_cast<size_t>(j)]];
      }
    }
  });
  std::vector<float> errors(static_cast<size_t>(n * kBlock)), behind, u_t;
  for (int64_t first = 0; first < k; first += kBlock) {
    const int64_t nb = std::min(kBlock, k - first);
    pool.parallel_for(n, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* values = work.data() + row * k + first;
        float* error = errors.data() + row * nb;
        for (int64_t j = 0; j < nb; ++j) {
          const int32_t column = order[static_cast<size_t>(first + j)];
          const float* weights = u.data() + (first + j) * k + first;
          const uint8_t code = grid.encode(row, column, values[j]);
          out.codes[static_cast<size_t>(row * k + column)] = code;
          error[j] = (values[j] - grid.decode(row, column, code)) / weights[j];
          for (int64_t i = j + 1; i < nb; ++i) values[i] -= error[j] * weights[i];
        }
      }
    });
    const int64_t rest = k - first - nb;
    if (rest == 0) break;
    u_t.resize(static_cast<size_t>(rest * nb));
    transpose(u.data() + first * k + first + nb, k, nb, rest, u_t.data(), pool);
    behind.resize(static_cast<size_t>(n * rest));
    TARE_TRY(products.multiply(errors.data(), nb, n, nb, u_t.data(), rest, behind.data(), rest));
    pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* values = work.data() + row * k + first + nb;
        const float* take = behind.data() + row * rest;
        for (int64_t j = 0; j < rest; ++j) values[j] -= take[j];
      }
    });
  }
  return out;
}

}  // namespace tare::quantize
