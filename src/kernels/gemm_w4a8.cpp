#include "kernels/gemm_w4a8.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/int_linear.h"

namespace tare::kernels {
namespace {

using tensor::QuantSpec;
using tensor::Rule;

/// QoQ and its relatives: 4-bit codes, either one scale a row with an integer zero or a float minimum (scale_first), or
/// u8 scales and s8 minima per group under one scale a row (integer_first). A row's zero or minimum never enters the
/// main loop: the epilogue takes it back with the token's sum.
Verdict can_implement(const LinearProblem& problem, const machine::Capabilities&) {
  const auto* spec = std::get_if<QuantSpec>(&problem.weight);
  if (!spec) return Verdict::no("weights are not quantized");
  if ((spec->kind != tensor::CodeKind::kUint && spec->kind != tensor::CodeKind::kInt) || spec->bits != 4) {
    return Verdict::no(fmt::format("codes are {}, not 4-bit integers", describe(*spec)));
  }
  if (const Verdict verdict = integer_activations(problem); !verdict.ok) return verdict;
  if (spec->act_order) return Verdict::no("groups of columns in another order");
  if (spec->zero == tensor::ZeroKind::kFloat ||
      (spec->zero == tensor::ZeroKind::kConstant && spec->zero_constant != std::nearbyint(spec->zero_constant))) {
    return Verdict::no("zero points that are not integers");
  }
  if (spec->has_outer_scale && spec->outer_group_size < problem.k)
    return Verdict::no("outer scales shorter than a row");
  if (spec->rule == Rule::kScaleFirst) {
    if (spec->group_size < problem.k) return Verdict::no("float scales per group");
  } else if (spec->rule == Rule::kIntegerFirst) {
    if (spec->round_inner) return Verdict::no("inner scales are rounded floats");
    if (spec->kind != tensor::CodeKind::kUint || spec->zero != tensor::ZeroKind::kNone) {
      return Verdict::no("signed codes or zero points under integer scales");
    }
    if (spec->group_size < problem.k && spec->group_size % kColumnBlock != 0) {
      return Verdict::no(fmt::format("group size {} is no multiple of {}", spec->group_size, kColumnBlock));
    }
  } else {
    return Verdict::no("nested scales");
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

const LinearKernel kGemmW4A8Avx512Vnni = {.name = "gemm_w4a8_avx512vnni",
                                          .op = "gemm_w4a8",
                                          .isa = machine::Isa::kAvx512Vnni,
                                          .can_implement = can_implement,
                                          .form = integer_activation_form,
                                          .workspace_bytes = workspace_bytes<kW4A8Avx512Vnni>,
                                          .prepack = int_prepack,
                                          .run = run<kW4A8Avx512Vnni>};

const LinearKernel kGemmW4A8Avx2 = {.name = "gemm_w4a8_avx2",
                                    .op = "gemm_w4a8",
                                    .isa = machine::Isa::kAvx2,
                                    .can_implement = can_implement,
                                    .form = integer_activation_form,
                                    .workspace_bytes = workspace_bytes<kW4A8Avx2>,
                                    .prepack = int_prepack,
                                    .run = run<kW4A8Avx2>};

}  // namespace tare::kernels
