#include "kernels/gemm_llm_int8.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "kernels/activations.h"
#include "kernels/gemm_w8a8.h"

namespace tare::kernels {

namespace {

using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::QuantSpec;

constexpr int64_t kLine = 64;
constexpr int64_t kRows = 32;  // of the weight, for one task of the sum over outliers

// The problem that is left when the outliers are out of it. The bias comes after them.
LinearProblem rest_of(const LinearProblem& problem) {
  LinearProblem rest = problem;
  rest.activation.outlier_threshold = 0;
  rest.bias = false;
  return rest;
}

class OutlierLinear final : public PackedLinear {
 public:
  LinearProblem problem;
  std::unique_ptr<PackedLinear> rest;
  std::vector<QuantizedTensor> parts;  // shares the bytes of the model: few columns of them are read
  std::vector<float> bias;
  int64_t bytes() const override { return rest->bytes() + static_cast<int64_t>(bias.size() * sizeof(float)); }
};

template <const LinearKernel& Inner>
Verdict can_implement(const LinearProblem& problem, const machine::Capabilities& caps) {
  if (problem.activation.outlier_threshold == 0) return Verdict::no("no activation outliers stay in floating point");
  const auto* spec = std::get_if<QuantSpec>(&problem.weight);
  if (spec && (spec->kind != tensor::CodeKind::kInt || spec->zero != tensor::ZeroKind::kNone || spec->has_min)) {
    return Verdict::no("weights with zeros or minima");
  }
  return Inner.can_implement(rest_of(problem), caps);
}

ActivationForm f32_form(const LinearProblem&) {
  return {};
}

template <const LinearKernel& Inner>
Result<std::unique_ptr<PackedLinear>> prepack(const LinearProblem& problem, std::span<const tensor::Weight> parts,
                                              std::span<const float> bias, ThreadPool& pool) {
  auto packed = std::make_unique<OutlierLinear>();
  packed->problem = problem;
  TARE_ASSIGN(packed->rest, Inner.prepack(rest_of(problem), parts, {}, pool));
  for (const tensor::Weight& part : parts) packed->parts.push_back(std::get<QuantizedTensor>(part));
  packed->bias.assign(bias.begin(), bias.end());
  return std::unique_ptr<PackedLinear>(std::move(packed));
}

// Scratch for M tokens: what is left of them, its codes, and which columns were taken out.
struct Scratch {
  float* rest = nullptr;       // [M, K]
  int32_t* columns = nullptr;  // [M, K], the first counts[m] of each row
  int64_t* counts = nullptr;   // [M]
  std::span<std::byte> codes, inner;

  static int64_t own_bytes(int64_t m, int64_t k) { return 2 * round_up(m * k * 4, kLine) + round_up(m * 8, kLine); }
  Scratch(std::span<std::byte> bytes, const ActivationForm& form, int64_t m, int64_t k) {
    rest = reinterpret_cast<float*>(bytes.data());
    columns = reinterpret_cast<int32_t*>(bytes.data() + round_up(m * k * 4, kLine));
    counts = reinterpret_cast<int64_t*>(bytes.data() + 2 * round_up(m * k * 4, kLine));
    const auto own = static_cast<size_t>(own_bytes(m, k));
    const auto coded = static_cast<size_t>(round_up(activation_bytes(form, m, k), kLine));
    codes = bytes.subspan(own, coded);
    inner = bytes.subspan(own + coded);
  }
};

template <const LinearKernel& Inner>
int64_t workspace_bytes(const LinearProblem& problem, int64_t m, int threads) {
  const LinearProblem rest = rest_of(problem);
  return Scratch::own_bytes(m, problem.k) + round_up(activation_bytes(Inner.form(rest), m, problem.k), kLine) +
         Inner.workspace_bytes(rest, m, threads);
}

// Takes values from the threshold on out of a token. One with NaN or inf stays whole: it poisons its own row.
int64_t take_outliers(const float* x, int64_t k, float threshold, float* rest, int32_t* columns) {
  int64_t count = 0;
  bool finite = true;
  for (int64_t i = 0; i < k; ++i) {
    finite = finite && std::isfinite(x[i]);
    const bool out = std::fabs(x[i]) >= threshold;
    rest[i] = out ? 0.0f : x[i];
    if (out) columns[count++] = static_cast<int32_t>(i);
  }
  if (finite) return count;
  std::copy_n(x, k, rest);
  return 0;
}

// The weight at a row and column, as `dequantize` defines it for codes without zero or minimum.
class RowWeights {
 public:
  RowWeights(const QuantizedTensor& t, int64_t row) : t_(t), f_(t.fields()), row_(row) {
    inner_ = f_.a ? f_.a->value(f_.a->row_index(row)) : 1.0f;
    outer_ = f_.A ? f_.A->value(f_.A->row_index(row)) : 1.0f;
    if (!f_.code_first) inner_ = with_outer(inner_);
  }
  float at(int64_t column) const {
    const auto code = static_cast<float>(static_cast<int8_t>(t_.code(row_, column)));
    return f_.code_first ? with_outer(inner_ * code) : inner_ * code;
  }

 private:
  float with_outer(float v) const { return !f_.A ? v : f_.A_divides ? v / outer_ : outer_ * v; }

  const QuantizedTensor& t_;
  const QuantizedFields& f_;
  int64_t row_;
  float inner_, outer_;
};

template <const LinearKernel& Inner>
void run(const PackedLinear& packed, const Activations& x, float* out, int64_t out_stride,
         std::span<std::byte> workspace, ThreadPool& pool) {
  const auto& linear = static_cast<const OutlierLinear&>(packed);
  const auto* values = static_cast<const float*>(x.data);
  const ActivationForm form = Inner.form(rest_of(linear.problem));
  const Scratch scratch(workspace, form, x.m, x.k);
  const ActivationStorage codes = carve_activations(form, x.m, x.k, scratch.codes);
  pool.parallel_for(x.m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      scratch.counts[m] = take_outliers(values + m * x.row_stride, x.k, linear.problem.activation.outlier_threshold,
                                        scratch.rest + m * x.k, scratch.columns + m * x.k);
    }
    write_activations(codes, scratch.rest, x.k, begin, end, Inner.isa);
  });
  Inner.run(*linear.rest, codes.view(), out, out_stride, scratch.inner, pool);

  const bool any = std::any_of(scratch.counts, scratch.counts + x.m, [](int64_t count) { return count > 0; });
  if (!any && linear.bias.empty()) return;
  int64_t first = 0;
  for (const QuantizedTensor& part : linear.parts) {
    pool.parallel_for(part.n(), kRows, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const RowWeights w(part, n);
        const int64_t column = first + n;
        for (int64_t m = 0; m < x.m; ++m) {
          float& y = out[m * out_stride + column];
          double sum = 0;
          for (int64_t i = 0; i < scratch.counts[m]; ++i) {
            const int32_t k = scratch.columns[m * x.k + i];
            sum += static_cast<double>(values[m * x.row_stride + k]) * static_cast<double>(w.at(k));
          }
          y += static_cast<float>(sum);
          if (!linear.bias.empty()) y += linear.bias[static_cast<size_t>(column)];
        }
      }
    });
    first += part.n();
  }
}

template <const LinearKernel& Inner>
constexpr LinearKernel row(std::string_view name, machine::Isa isa) {
  return {.name = name,
          .op = "gemm_llm_int8",
          .isa = isa,
          .can_implement = can_implement<Inner>,
          .form = f32_form,
          .workspace_bytes = workspace_bytes<Inner>,
          .prepack = prepack<Inner>,
          .run = run<Inner>};
}

}  // namespace

const LinearKernel kGemmLlmInt8Avx512Vnni =
    row<kGemmW8A8Avx512Vnni>("gemm_llm_int8_avx512vnni", machine::Isa::kAvx512Vnni);
const LinearKernel kGemmLlmInt8Avx2 = row<kGemmW8A8Avx2>("gemm_llm_int8_avx2", machine::Isa::kAvx2);

}  // namespace tare::kernels
