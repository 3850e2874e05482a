#include "kernels/measure.h"

#include <algorithm>

#include "base/aligned_bytes.h"
#include "base/checked.h"
#include "kernels/activations.h"
#include "kernels/reference/samples.h"
#include "numerics/packing.h"

namespace tare::kernels {

namespace {

using tensor::Grid;
using tensor::GridType;

int64_t grid_bits(const Grid& grid) {
  const int bits = grid.type == GridType::kU4 ? 4
                   : grid.type == GridType::kU6 || grid.type == GridType::kS6
                       ? 6
                       : 8 * tensor::grid_element_bytes(grid.type);
  return grid.tiles_n * grid.tiles_k * bits;
}

std::span<std::byte> aligned(std::vector<std::byte>& bytes) {
  const auto start = static_cast<size_t>(-reinterpret_cast<uintptr_t>(bytes.data()) & 63);
  return std::span(bytes).subspan(start);
}

}  // namespace

int64_t stored_bytes(const tensor::Weight& weight) {
  if (const auto* dense = std::get_if<tensor::Tensor>(&weight)) return static_cast<int64_t>(dense->data.size());
  const tensor::QuantizedFields& f = std::get<tensor::QuantizedTensor>(weight).fields();
  const int64_t row_codes = f.kind == tensor::CodeKind::kVq ? f.k / f.vq->in_group * f.vq->count : f.k;
  const int64_t rows = f.kind == tensor::CodeKind::kVq ? f.n / f.vq->out_group : f.n;
  int64_t bits = rows * row_codes * f.bits;
  for (const auto* grid : {&f.a, &f.A, &f.b, &f.B}) {
    if (*grid) bits += grid_bits(**grid);
  }
  // Integer zeros are stored as wide as the codes, whatever holds them here.
  if (const auto* z = std::get_if<Grid>(&f.z)) {
    bits += tensor::is_integer(z->type) ? z->tiles_n * z->tiles_k * f.bits : grid_bits(*z);
  }
  return ceil_div(bits, 8) + (f.vq ? static_cast<int64_t>(f.vq->books.size()) : 0);
}

Result<std::vector<LinearTiming>> measure_linear(const LinearKernel& kernel, const LinearProblem& problem,
                                                 const tensor::Weight& weight, std::span<const int64_t> m,
                                                 machine::Isa isa, ThreadPool& pool, const MeasureOptions& options) {
  std::vector<std::unique_ptr<PackedLinear>> copies;
  for (int64_t bytes = 0; bytes < options.cold_bytes || copies.empty();) {
    TARE_ASSIGN(std::unique_ptr<PackedLinear> packed, kernel.prepack(problem, {&weight, 1}, {}, pool));
    bytes += std::max<int64_t>(packed->bytes(), stored_bytes(weight));
    copies.push_back(std::move(packed));
  }
  const ActivationForm form = kernel.form(problem);
  std::vector<LinearTiming> timings;
  for (const int64_t tokens : m) {
    const std::vector<float> x = sample_tokens(tokens, problem.k, 1);
    std::vector<std::byte> storage(static_cast<size_t>(activation_bytes(form, tokens, problem.k) + 64));
    const ActivationStorage carved = carve_activations(form, tokens, problem.k, aligned(storage));
    write_activations(carved, x.data(), problem.k, 0, tokens, isa);
    const Activations activations = carved.view();
    std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem, tokens, pool.size()) + 64));
    AlignedFloats out(static_cast<size_t>(tokens * problem.n));  // as in a model

    std::vector<double> seconds;
    size_t next = 0;
    const double start = bench_seconds(options.clock);
    double before = start;
    for (int pass = -1;; ++pass) {
      kernel.run(*copies[next], activations, out.data(), problem.n, aligned(workspace), pool);
      next = (next + 1) % copies.size();
      const double now = bench_seconds(options.clock);
      if (pass >= 0) seconds.push_back(now - before);
      before = now;
      const double total = now - start;
      if (pass + 1 >= options.repeats && total >= options.seconds) break;
    }
    std::sort(seconds.begin(), seconds.end());
    timings.push_back({.m = tokens,
                       .median_s = seconds[seconds.size() / 2],
                       .min_s = seconds.front(),
                       .max_s = seconds.back(),
                       .repeats = static_cast<int>(seconds.size())});
  }
  return timings;
}

}  // namespace tare::kernels
