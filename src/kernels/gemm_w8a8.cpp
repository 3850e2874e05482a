#include "kernels/gemm_w8a8.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/int_linear.h"

namespace tare::kernels {
namespace {

using tensor::QuantSpec;
using tensor::Rule;

/// Weights s8 (or u8 with an integer zero), one scale a row, block of rows or tensor. Activations s8 per token or
/// static, with or without a zero; zeros of both sides are taken back in exact integers after the product.
Verdict can_implement(const LinearProblem& problem, const machine::Capabilities&) {
  const auto* spec = std::get_if<QuantSpec>(&problem.weight);
  if (!spec) return Verdict::no("weights are not quantized");
  if ((spec->kind != tensor::CodeKind::kInt && spec->kind != tensor::CodeKind::kUint) || spec->bits != 8) {
    return Verdict::no(fmt::format("codes are {}, not 8-bit integers", describe(*spec)));
  }
  if (const Verdict verdict = integer_activations(problem); !verdict.ok) return verdict;
  if (spec->rule != Rule::kScaleFirst) return Verdict::no("integer or nested inner scales");
  if (spec->act_order) return Verdict::no("groups of columns in another order");
  if (spec->zero == tensor::ZeroKind::kFloat ||
      (spec->zero == tensor::ZeroKind::kConstant && spec->zero_constant != std::nearbyint(spec->zero_constant))) {
    return Verdict::no("zero points that are not integers");
  }
  if (spec->group_size < problem.k || (spec->has_outer_scale && spec->outer_group_size < problem.k)) {
    return Verdict::no("scales per group of columns");
  }
  return Verdict::yes();
}

template <const IntGemmOps& Ops>
int64_t workspace_bytes(const LinearProblem& problem, int64_t m, int threads) {
  return int_workspace_bytes(problem, m, threads, Ops);
}

template <const IntGemmOps& Ops>
void run(const PackedLinear& packed, const Activations& x, float* out, int64_t out_stride,
         std::span<std::byte> workspace, ThreadPool& pool) {
  int_run(packed, x, out, out_stride, workspace, pool, Ops);
}

}  // namespace

const LinearKernel kGemmW8A8Avx512Vnni = {.name = "gemm_w8a8_avx512vnni",
                                          .op = "gemm_w8a8",
                                          .isa = machine::Isa::kAvx512Vnni,
                                          .can_implement = can_implement,
                                          .form = integer_activation_form,
                                          .workspace_bytes = workspace_bytes<kW8A8Avx512Vnni>,
                                          .prepack = int_prepack,
                                          .run = run<kW8A8Avx512Vnni>};

const LinearKernel kGemmW8A8Avx2 = {.name = "gemm_w8a8_avx2",
                                    .op = "gemm_w8a8",
                                    .isa = machine::Isa::kAvx2,
                                    .can_implement = can_implement,
                                    .form = integer_activation_form,
                                    .workspace_bytes = workspace_bytes<kW8A8Avx2>,
                                    .prepack = int_prepack,
                                    .run = run<kW8A8Avx2>};

}  // namespace tare::kernels
