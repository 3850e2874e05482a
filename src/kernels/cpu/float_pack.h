#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/cpu/float_gemm.h"
#include "kernels/huge_array.h"
#include "kernels/linear.h"

namespace tare::kernels {

/// A weight in the layout of float_gemm.h.
class FloatLinear final : public PackedLinear {
 public:
  FloatMatrix matrix;
  LinearProblem problem;
  std::vector<int32_t> gather;  // [k_padded]: source column, -1 for padding; empty when columns stay where they are

  int64_t bytes() const override;

 private:
  friend class FloatPacker;
  HugeArray codes_;
  HugeArray scale_, outer_, zero_, offset_, own_;
  std::vector<int32_t> group_step_, outer_column_, own_column_;
  std::vector<float> bias_;
};

/// Whether float_gemm.h can hold this weight form.
Verdict can_pack_float(const LinearProblem& problem);

/// Most groups that a packed weight of this problem has; known before the weight is.
int64_t float_group_bound(const LinearProblem& problem);

/// Errors: parts whose tables or act-order maps differ (bind them apart); NaN codes.
Result<std::unique_ptr<PackedLinear>> pack_float(const LinearProblem& problem, std::span<const tensor::Weight> parts,
                                                 std::span<const float> bias, ThreadPool& pool);

/// Scratch of run_float.
int64_t float_workspace_bytes(const LinearProblem& problem, int64_t m, int threads);

/// y = x * w^T + bias. x: [M] rows of problem.k f32.
void run_float(const FloatGemmOps& ops, const FloatLinear& linear, const float* x, int64_t x_stride, int64_t m,
               float* out, int64_t out_stride, std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace tare::kernels
