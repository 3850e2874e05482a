#include "quantize/products.h"

#include <algorithm>

#include "kernels/activations.h"
#include "tensor/quantized_tensor.h"

namespace tare::quantize {

Status Products::multiply(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* w, int64_t n, float* out,
                          int64_t out_stride) {
  if (m == 0 || n == 0) return {};
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i) std::fill_n(out + i * out_stride, n, 0.0f);
    return {};
  }
  const kernels::LinearProblem problem{.n = n, .k = k, .weight = tensor::DType::kF32};
  TARE_ASSIGN(const kernels::Selection selection, kernels::select_linear(registry_, problem, caps_, {}, self_tests_));
  const kernels::LinearKernel& kernel = *selection.kernel;
  // The caller's memory outlives the packed copy.
  const Buffer view(nullptr, reinterpret_cast<const std::byte*>(w), static_cast<size_t>(n * k) * sizeof(float));
  const std::vector<tensor::Weight> parts = {tensor::Tensor{tensor::DType::kF32, {n, k}, view}};
  TARE_ASSIGN(const std::unique_ptr<kernels::PackedLinear> packed, kernel.prepack(problem, parts, {}, *pool_));
  const auto workspace = static_cast<size_t>(kernel.workspace_bytes(problem, m, pool_->size()));
  if (workspace > workspace_.size()) workspace_ = AlignedBytes(workspace);
  kernels::Activations input = kernels::f32_activations(x, m, k, x_stride);
  const kernels::ActivationForm form = kernel.form(problem);
  if (form != input.form) {
    const auto bytes = static_cast<size_t>(kernels::activation_bytes(form, m, k));
    if (bytes > activations_.size()) activations_ = AlignedBytes(bytes);
    const kernels::ActivationStorage storage = kernels::carve_activations(form, m, k, activations_.bytes());
    kernels::write_activations(storage, x, x_stride, 0, m, caps_.isa);
    input = storage.view();
  }
  kernel.run(*packed, input, out, out_stride, workspace_.bytes(), *pool_);
  return {};
}

void transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out, ThreadPool& pool) {
  constexpr int64_t kTile = 32;
  pool.parallel_for((columns + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin * kTile; c0 < std::min(end * kTile, columns); c0 += kTile) {
      const int64_t c1 = std::min(c0 + kTile, columns);
      for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
        const int64_t r1 = std::min(r0 + kTile, rows);
        for (int64_t c = c0; c < c1; ++c) {
          for (int64_t r = r0; r < r1; ++r) out[c * rows + r] = in[r * in_stride + c];
        }
      }
    }
  });
}

}  // namespace tare::quantize
