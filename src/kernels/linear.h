#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "machine/isa.h"
#include "tensor/quantized_tensor.h"
#include "tensor/scheme.h"

/// Matrix products y[M,N] = x[M,K] * w[N,K]^T (+ bias[N]) over every weight form.
///
/// One row of the registry is one kernel. It is asked about a `LinearProblem`, prepacks the weight once into its own
/// layout, and then runs for any M. Promise P1: each output is one accumulator chain in fixed k order, so a row of y is
/// bitwise the same whatever M, the neighbours and the number of threads.
///
/// To add a kernel: write its row in its own file (`kernels/<where>/<name>.cpp`, `extern const LinearKernel kName;`),
/// put it into the table of registry.cpp at its place in the order of preference. The one sweep
/// (linear_sweep_test.cpp) and the start-up self-test then run it on every form it claims, against
/// reference/gemm.cpp. What kernels share:
///
/// Integer path, exact on every ISA level (promises P2, P3). Activations are integer codes q with one scale sx and
/// maybe one zero zx per token; weights are integers (one scale per row, or progressive groups). acc, wsum, xsum are
/// exact int32 sums:
///     acc[m,n] = sum_k q[m,k] * w[n,k]  -  zx[m] * sum_k w[n,k]      w = c - z, or a*c + b of Rule::kIntegerFirst
///     y = float(acc) * (S[n] * sx[m])                                S = A*a (a/A where A divides)
///     y = y + R[n] * (sx[m] * float(xsum[m] - zx[m] * K))            where the rows have a minimum R = B*b
///     y = y + bias[n]                                                each product and sum rounded to f32, in this
///     order
/// Everything else: products of dequantized weights and activations, accumulated in f32 within the usual bound
/// (docs/decisions/kernels-*.md); the reference accumulates in double.
namespace tare::kernels {

/// What a kernel is asked to compute; from headers alone, so that `plan` and `explain` can ask too.
struct LinearProblem {
  int64_t n = 0;
  int64_t k = 0;
  std::variant<tensor::DType, tensor::QuantSpec> weight;
  tensor::ActivationSpec activation;
  bool bias = false;
};

/// How a kernel wants its input.
enum class ActivationLayout {
  kRowMajor,  // [M][K], rows `row_stride` elements apart
};

/// The form of the input that a kernel row asks for and that fused producers (norm, SiLU*up, attention output) emit.
struct ActivationForm {
  tensor::DType dtype = tensor::DType::kF32;  // kF32, or kI8 with one scale per token
  ActivationLayout layout = ActivationLayout::kRowMajor;
  tensor::ActivationSpec quantizer;  // kI8: how the codes are made (type kS8, per tensor or token, no outliers)

  bool operator==(const ActivationForm&) const = default;
};

/// M tokens in the form a kernel asked for. Non-owning. See activations.h for making them.
/// kI8: rows start at multiples of 64 bytes and are padded with code 0 up to row_stride, a multiple of 64. Codes lie in
/// [-127, 127] when dynamic and symmetric, else in [-128, 127]. A token with NaN or inf has scale NaN and codes 0.
struct Activations {
  ActivationForm form;
  int64_t m = 0;
  int64_t k = 0;
  const void* data = nullptr;
  int64_t row_stride = 0;            // elements
  const float* scale = nullptr;      // [M]: x ~ scale * (q - zero), kI8 only
  const int32_t* zero = nullptr;     // [M], kI8 only, nullptr when all are 0
  const int32_t* row_sum = nullptr;  // [M]: sum over k of q (zero not subtracted), kI8 only
};

/// Yes, or why not.
struct Verdict {
  bool ok = true;
  std::string reason;

  static Verdict yes() { return {}; }
  static Verdict no(std::string why) { return {false, std::move(why)}; }
};

/// A weight in the layout of the kernel that packed it. Only that kernel may run it.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t bytes() const = 0;  // held in memory
};

/// One kernel: its registry row.
struct LinearKernel {
  std::string_view name;  // op_format_where, e.g. gemm_w4a8_avx512vnni
  std::string_view op;    // gemm, gemm_w4a8, ...
  machine::Isa isa = machine::Isa::kReference;
  bool only_by_name = false;  // never selected, only with --kernel

  /// Pure; from headers alone.
  Verdict (*can_implement)(const LinearProblem&, const machine::Capabilities&) = nullptr;
  ActivationForm (*form)(const LinearProblem&) = nullptr;
  /// Scratch that `run` needs for M tokens, all threads together.
  int64_t (*workspace_bytes)(const LinearProblem&, int64_t m, int threads) = nullptr;
  /// parts: row blocks that together have problem.n rows, all of the problem's form. bias: [N] f32 or empty.
  Result<std::unique_ptr<PackedLinear>> (*prepack)(const LinearProblem&, std::span<const tensor::Weight> parts,
                                                   std::span<const float> bias, ThreadPool&) = nullptr;
  /// out: [M][out_stride] f32, columns [0, N) written. No allocation.
  void (*run)(const PackedLinear&, const Activations&, float* out, int64_t out_stride, std::span<std::byte> workspace,
              ThreadPool&) = nullptr;
};

/// Why each kernel before the chosen one was passed over.
struct Rejection {
  std::string kernel;
  std::string reason;
};

struct Selection {
  const LinearKernel* kernel = nullptr;
  std::vector<Rejection> rejected;
};

/// Kernels in order of preference; plugins append. A value, built by `builtin_linear_kernels()` and passed on.
using LinearRegistry = std::vector<const LinearKernel*>;
LinearRegistry builtin_linear_kernels();

/// The first kernel that says yes. `forced` (from --kernel) skips all others; its refusal is an error, and so is an
/// unknown name (the error lists the names). Kernels above `caps.isa` are refused before they are asked.
Result<Selection> select_linear(const LinearRegistry& registry, const LinearProblem& problem,
                                const machine::Capabilities& caps, std::string_view forced = {});

/// Whether the kernel computes on this machine what the reference computes: small problems of every form it claims, at
/// several M. A mismatch names form, shape and the two values.
Status self_test(const LinearKernel& kernel, const machine::Capabilities& caps, ThreadPool& pool);

/// Kernels that `caps` has and that pass their self-test on every form they claim, in the order of `registry`; what was
/// dropped, and why, goes to `dropped`. For reports: running models test what they use (SelfTests).
LinearRegistry available_linear_kernels(const LinearRegistry& registry, const machine::Capabilities& caps,
                                        ThreadPool& pool, std::vector<Rejection>* dropped = nullptr);

/// Self-tests on first use, remembered: a kernel is tried on the forms of weight it is about to run, on matrices that
/// end inside a panel, a column block and a group, at several M. About 20 ms each. One thread at a time.
class SelfTests {
 public:
  /// Tests with one thread of `pool`'s machine, the first time; then gives what was found.
  const Status& check(const LinearKernel& kernel, const LinearProblem& problem, const machine::Capabilities& caps);
  int64_t made() const { return static_cast<int64_t>(results_.size()); }
  /// True the first time: landing on the reference row is told once.
  bool first_reference() { return !std::exchange(reference_told_, true); }

 private:
  std::map<std::string, Status> results_;
  bool reference_told_ = false;
};

/// As above, but a kernel that fails its self-test is passed over with that reason (forced: an error), and the log
/// warns of it; it also warns, once, when no kernel but the reference takes a matrix.
Result<Selection> select_linear(const LinearRegistry& registry, const LinearProblem& problem,
                                const machine::Capabilities& caps, std::string_view forced, SelfTests& tests);

}  // namespace tare::kernels
