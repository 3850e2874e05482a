#include "quantize/solver.h"

#include <fmt/format.h>

#include <algorithm>

namespace tare::quantize {

Result<SiteSolver> SiteSolver::make(const SiteInputs& inputs, const SolveOptions& options, Products& products) {
  SiteSolver out(products);
  out.options_ = options;
  out.inputs_ = &inputs;
  TARE_ASSIGN(out.factor_, InverseFactor::make(inputs.gram, options.gptq, products));
  return out;
}

Result<std::vector<float>> SiteSolver::target(const BlockMatrix& matrix, double residual_multiplier) {
  std::vector<float> out = matrix.w;
  const SiteInputs& in = *inputs_;
  if (in.cross.empty() || factor_.u.empty() || options_.correction == 0) return out;
  const int64_t n = matrix.n;
  const int64_t k = matrix.k;
  // (W D + R) H^-1, with D = cross^T laid out as the right side of a product: cross [K, K] is (ref - quant) x quant.
  std::vector<float> right(in.cross.size()), moved(out.size());
  transpose(in.cross.data(), k, k, k, right.data(), products_->pool());
  TARE_TRY(products_->multiply(matrix.w.data(), k, n, k, right.data(), k, moved.data(), k));
  if (residual_multiplier != 0 && !in.residual.empty()) {
    const auto share = static_cast<float>(1.0 / residual_multiplier);
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += share * in.residual[i];
  }
  // Columns into the factor's order, then x U^T, then x U.
  std::vector<float> ordered(moved.size());
  const std::vector<int32_t>& order = factor_.order;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t j = 0; j < k; ++j) {
      ordered[static_cast<size_t>(row * k + j)] = moved[static_cast<size_t>(row * k + order[static_cast<size_t>(j)])];
    }
  }
  TARE_TRY(products_->multiply(ordered.data(), k, n, k, factor_.u.data(), k, moved.data(), k));
  transpose(factor_.u.data(), k, k, k, right.data(), products_->pool());
  TARE_TRY(products_->multiply(moved.data(), k, n, k, right.data(), k, ordered.data(), k));
  const auto share = static_cast<float>(options_.correction);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t j = 0; j < k; ++j) {
      out[static_cast<size_t>(row * k + order[static_cast<size_t>(j)])] +=
          share * ordered[static_cast<size_t>(row * k + j)];
    }
  }
  return out;
}

Result<Solved> SiteSolver::solve(const BlockMatrix& matrix, double residual_multiplier) {
  const int64_t n = matrix.n;
  const int64_t k = matrix.k;
  ThreadPool& pool = products_->pool();
  const Gram& gram = inputs_->gram;
  TARE_ASSIGN(const std::vector<float> w, target(matrix, residual_multiplier));
  TARE_ASSIGN(const double power, output_error(gram, w.data(), n, *products_));
  const auto decoded = [&](const tensor::QuantizedTensor& weight) {
    std::vector<float> out(w.size());
    pool.parallel_for(
        n, 16, [&](int64_t begin, int64_t end) { tensor::dequantize(weight, begin, end, out.data() + begin * k); });
    return out;
  };
  const auto error_of = [&](const std::vector<float>& values) -> Result<double> {
    std::vector<float> d(values.size());
    for (size_t i = 0; i < d.size(); ++i) d[i] = w[i] - values[i];
    TARE_ASSIGN(const double error, output_error(gram, d.data(), n, *products_));
    return power > 0 ? error / power : 0.0;
  };
  const auto nearest = [&]() -> Result<Solved> {
    TARE_ASSIGN(tensor::QuantizedTensor weight,
                round_to_nearest(matrix.scheme.grid, matrix.w.data(), n, k, "tare", pool, matrix.clip));
    std::vector<float> values = decoded(weight);
    TARE_ASSIGN(const double error, error_of(values));
    return Solved{std::move(weight), std::move(values), error, error, "rtn"};
  };
  TARE_ASSIGN(Solved rtn, nearest());
  if (matrix.scheme.algorithm != "gptq") {
    rtn.status = matrix.scheme.algorithm;
    return rtn;
  }
  if (factor_.damping < 0) {
    rtn.status = "rtn (no activity that GPTQ could use)";
    return rtn;
  }
  ChosenGrid grid;
  if (options_.search_ranges && matrix.clip.empty()) {
    const std::vector<float> diagonal = gram.diagonal();
    TARE_ASSIGN(grid, ChosenGrid::search(matrix.scheme.grid, w.data(), n, k, pool, diagonal));
  } else {
    TARE_ASSIGN(grid, ChosenGrid::choose(matrix.scheme.grid, w.data(), n, k, pool, matrix.clip));
  }
  TARE_ASSIGN(GptqResult result, gptq(grid, w.data(), factor_, *products_));
  TARE_TRY(refine(grid, w.data(), gram, factor_.added, options_.sweeps, result.codes, *products_));
  TARE_ASSIGN(tensor::QuantizedTensor weight, grid.finish(result.codes, "tare"));
  std::vector<float> values = decoded(weight);
  TARE_ASSIGN(const double error, error_of(values));
  if (error > rtn.error) {
    rtn.status = "rtn (gptq was worse)";
    return rtn;
  }
  const std::string status =
      result.dead_columns > 0 ? fmt::format("gptq ({} dead columns)", result.dead_columns) : "gptq";
  return Solved{std::move(weight), std::move(values), error, rtn.error, status};
}

}  // namespace tare::quantize
