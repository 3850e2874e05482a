#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/linear.h"

namespace tare::kernels {

/// How the numbers of a sample are drawn.
enum class SamplePattern {
  kRandom,
  kLargest,   // every code at the end of its range that makes the largest magnitude, scales alike
  kSmallest,  // the other end
  kZero,      // codes that mean the zero point (or code 0)
};

/// Makes an [n,k] weight of one form. Seeded: the same arguments give the same weight on every machine.
struct SampleForm {
  std::string name;  // "gptq-u4-g128"
  int64_t n_multiple = 1;
  int64_t k_multiple = 1;
  tensor::Weight (*make)(const SampleForm&, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) = nullptr;

  // Read by `make`; which of them count depends on it.
  tensor::CodeKind kind = tensor::CodeKind::kUint;
  tensor::DType dtype = tensor::DType::kF32;
  int bits = 4;
  int64_t group_n = 1;     // 0: all rows
  int64_t group_size = 0;  // 0: the whole row
  tensor::GridType scale = tensor::GridType::kF16;
  tensor::ZeroKind zero = tensor::ZeroKind::kNone;
  float zero_constant = 0;
  bool minimum = false;
  bool act_order = false;
};

/// Every weight form that tare knows, one sample each: those of docs/architecture.md section 2 and their widths.
std::vector<SampleForm> sample_forms();

/// The activation specs that checkpoints ask for, kNone first.
std::vector<tensor::ActivationSpec> sample_activations();

/// The problem that a weight and an activation spec pose.
LinearProblem problem_of(const tensor::Weight& weight, const tensor::ActivationSpec& activation, bool bias);

/// [m,k] f32 about normal, seeded, with a few large channels; row `m` can be made special by the caller.
std::vector<float> sample_tokens(int64_t m, int64_t k, uint64_t seed);

/// y and the bound of its error, from the reference: |y - ref| <= bound for f32 accumulation in any order of K products
/// (docs/style.md section 6), weights and activations taken as dequantized. Where a weight has a minimum or a zero
/// point of its own, |w| counts as |scale * (code - middle)| + |scale * (zero - middle)| + |minimum|: kernels apply
/// those once per group, as sum(x) * (minimum - scale * zero).
struct ExpectedProduct {
  std::vector<float> y;       // [m,n]
  std::vector<double> bound;  // [m,n]
};
ExpectedProduct expected_product(const LinearProblem& problem, const tensor::Weight& weight,
                                 const std::vector<float>& bias, const std::vector<float>& x, int64_t m,
                                 ThreadPool& pool);

/// Runs a kernel end to end: prepack, bring x to its form, run. out: [m,n].
Result<std::vector<float>> run_linear(const LinearKernel& kernel, const LinearProblem& problem,
                                      std::span<const tensor::Weight> parts, std::span<const float> bias,
                                      const std::vector<float>& x, int64_t m, machine::Isa isa, ThreadPool& pool);

/// Whether the kernel has to equal the reference bit by bit: integer codes on both sides and the exact formula of
/// linear.h (kernels that claim such a problem run it in integers).
bool is_exact(const LinearKernel& kernel, const LinearProblem& problem);

}  // namespace tare::kernels
