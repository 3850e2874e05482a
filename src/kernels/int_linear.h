#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/int_gemm.h"
#include "kernels/linear.h"

/// The driver that the integer products with one float scale a row share (gemm_w4a8, gemm_w8a8): prepacking from
/// parts, the split of the work, and the small things computed from the activations once per call.
namespace tare::kernels {

/// Whether the activations are a form that the integer path takes: s8 codes with one scale per token or tensor.
Verdict integer_activations(const LinearProblem& problem);
ActivationForm integer_activation_form(const LinearProblem& problem);

int64_t int_workspace_bytes(const LinearProblem& problem, int64_t m, int threads, const IntGemmOps& ops);

/// Errors: parts that are not of the problem's form; sums that could leave int32.
Result<std::unique_ptr<PackedLinear>> int_prepack(const LinearProblem& problem, std::span<const tensor::Weight> parts,
                                                  std::span<const float> bias, ThreadPool& pool);

void int_run(const PackedLinear& packed, const Activations& activations, float* out, int64_t out_stride,
             std::span<std::byte> workspace, ThreadPool& pool, const IntGemmOps& ops);

}  // namespace tare::kernels
