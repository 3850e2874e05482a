#include "kernels/cpu/float_rows.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "kernels/cpu/float_pack.h"
#include "kernels/reference/activations.h"

namespace tare::kernels {

namespace {

using tensor::ActivationSpec;
using tensor::ActivationType;
using tensor::CodeKind;
using tensor::QuantSpec;
using tensor::Weight;

Verdict can_gemm(const LinearProblem& problem, const machine::Capabilities&) {
  if (std::holds_alternative<QuantSpec>(problem.weight)) return Verdict::no("the weight is quantized");
  if (problem.activation.type != ActivationType::kNone) return Verdict::no("the activations are quantized");
  return can_pack_float(problem);
}

Verdict can_wna16(const LinearProblem& problem, const machine::Capabilities&) {
  if (!std::holds_alternative<QuantSpec>(problem.weight)) return Verdict::no("the weight is dense");
  if (problem.activation.type != ActivationType::kNone) {
    return Verdict::no(fmt::format("activations are {}", describe(problem.activation)));
  }
  return can_pack_float(problem);
}

bool is_fp8(const LinearProblem& problem) {
  const auto* spec = std::get_if<QuantSpec>(&problem.weight);
  return spec && (spec->kind == CodeKind::kE4M3 || spec->kind == CodeKind::kE5M2);
}

Verdict can_fp8(const LinearProblem& problem, const machine::Capabilities&) {
  if (!is_fp8(problem)) return Verdict::no("the weight is not FP8");
  if (problem.activation.type != ActivationType::kE4M3) {
    return Verdict::no(fmt::format("activations are {}, not e4m3", describe(problem.activation)));
  }
  return can_pack_float(problem);
}

Verdict can_qdq(const LinearProblem& problem, const machine::Capabilities&) {
  if (problem.activation.type == ActivationType::kNone) return Verdict::no("the activations are not quantized");
  if (is_fp8(problem) && problem.activation.type == ActivationType::kE4M3) return Verdict::no("gemm_fp8 does this");
  return can_pack_float(problem);
}

ActivationForm f32_form(const LinearProblem&) {
  return {};
}

template <const FloatGemmOps& Ops>
void run_rows(const PackedLinear& packed, const Activations& x, float* out, int64_t out_stride,
              std::span<std::byte> workspace, ThreadPool& pool) {
  run_float(Ops, static_cast<const FloatLinear&>(packed), static_cast<const float*>(x.data), x.row_stride, x.m, out,
            out_stride, workspace, pool);
}

// ---- rounded activations --------------------------------------------------------------------------------------------

int64_t rounded_bytes(const LinearProblem& problem, int64_t m) {
  return round_up(m * problem.k * 4, 64);
}

int64_t rounded_workspace_bytes(const LinearProblem& problem, int64_t m, int threads) {
  return rounded_bytes(problem, m) + float_workspace_bytes(problem, m, threads);
}

template <const FloatGemmOps& Ops>
void run_rounded(const PackedLinear& packed, const Activations& x, float* out, int64_t out_stride,
                 std::span<std::byte> workspace, ThreadPool& pool) {
  const auto& linear = static_cast<const FloatLinear&>(packed);
  const ActivationSpec& spec = linear.problem.activation;
  auto* rounded = reinterpret_cast<float*>(workspace.data());
  const auto* values = static_cast<const float*>(x.data);
  pool.parallel_for(x.m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const ReferenceActivations codes = quantize_reference(spec, values + row * x.row_stride, 1, x.k, x.k);
      for (int64_t k = 0; k < x.k; ++k) {
        const float outlier = codes.outliers.empty() ? 0.0f : codes.outliers[static_cast<size_t>(k)];
        const float scale = codes.scale[static_cast<size_t>(k / codes.group_size)];
        rounded[row * x.k + k] = outlier != 0 ? outlier : scale * codes.unscaled(spec, 0, k);
      }
    }
  });
  run_float(Ops, linear, rounded, x.k, x.m, out, out_stride,
            workspace.subspan(static_cast<size_t>(rounded_bytes(linear.problem, x.m))), pool);
}

// ---- the naive path -------------------------------------------------------------------------------------------------

class NaiveLinear final : public PackedLinear {
 public:
  LinearProblem problem;
  std::vector<Weight> parts;  // shares the bytes of the model
  std::vector<float> bias;
  int64_t bytes() const override { return static_cast<int64_t>(bias.size() * sizeof(float)); }
};

Verdict can_naive(const LinearProblem& problem, const machine::Capabilities&) {
  if (!std::holds_alternative<QuantSpec>(problem.weight)) return Verdict::no("the weight is dense");
  if (problem.activation.type != ActivationType::kNone) {
    return Verdict::no(fmt::format("activations are {}", describe(problem.activation)));
  }
  return Verdict::yes();
}

Result<std::unique_ptr<PackedLinear>> keep_parts(const LinearProblem& problem, std::span<const Weight> parts,
                                                 std::span<const float> bias, ThreadPool&) {
  auto packed = std::make_unique<NaiveLinear>();
  packed->problem = problem;
  packed->parts.assign(parts.begin(), parts.end());
  packed->bias.assign(bias.begin(), bias.end());
  return std::unique_ptr<PackedLinear>(std::move(packed));
}

int64_t naive_workspace_bytes(const LinearProblem& problem, int64_t, int) {
  return round_up(problem.n, 16) * problem.k * 4;
}

// The dense copy [ceil(N/16)][K][16] is made anew in each call: that is what this path is about.
void run_naive(const PackedLinear& packed, const Activations& x, float* out, int64_t out_stride,
               std::span<std::byte> workspace, ThreadPool& pool) {
  const auto& naive = static_cast<const NaiveLinear&>(packed);
  const int64_t k = naive.problem.k, n = naive.problem.n;
  auto* dense = reinterpret_cast<float*>(workspace.data());
  int64_t first = 0;
  for (const Weight& part : naive.parts) {
    const auto& t = std::get<tensor::QuantizedTensor>(part);
    pool.parallel_for(t.n(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) tensor::dequantize(t, row, row + 1, dense + (first + row) * k);
    });
    first += t.n();
  }
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t m = 0; m < x.m; ++m) {
      const float* token = static_cast<const float*>(x.data) + m * x.row_stride;
      for (int64_t row = begin; row < end; ++row) {
        const float* w = dense + row * k;
        float lanes[16] = {};
        int64_t i = 0;
        for (; i + 16 <= k; i += 16) {
          for (int64_t j = 0; j < 16; ++j) lanes[j] += token[i + j] * w[i + j];
        }
        float sum = 0;
        for (; i < k; ++i) sum += token[i] * w[i];
        for (const float lane : lanes) sum += lane;
        out[m * out_stride + row] = naive.bias.empty() ? sum : sum + naive.bias[static_cast<size_t>(row)];
      }
    }
  });
}

template <const FloatGemmOps& Ops>
constexpr LinearKernel float_row(std::string_view name, std::string_view op, machine::Isa isa,
                                 Verdict (*can_implement)(const LinearProblem&, const machine::Capabilities&)) {
  return {.name = name,
          .op = op,
          .isa = isa,
          .can_implement = can_implement,
          .form = f32_form,
          .workspace_bytes = float_workspace_bytes,
          .prepack = pack_float,
          .run = run_rows<Ops>};
}

template <const FloatGemmOps& Ops>
constexpr LinearKernel rounded_row(std::string_view name, std::string_view op, machine::Isa isa,
                                   Verdict (*can_implement)(const LinearProblem&, const machine::Capabilities&)) {
  LinearKernel row = float_row<Ops>(name, op, isa, can_implement);
  row.workspace_bytes = rounded_workspace_bytes;
  row.run = run_rounded<Ops>;
  return row;
}

using machine::Isa;

}  // namespace

const LinearKernel kGemmAvx512Vnni = float_row<kFloatGemmAvx512>("gemm_avx512vnni", "gemm", Isa::kAvx512Vnni, can_gemm);
const LinearKernel kGemmAvx2 = float_row<kFloatGemmAvx2>("gemm_avx2", "gemm", Isa::kAvx2, can_gemm);
const LinearKernel kGemmWNa16Avx512Vnni =
    float_row<kFloatGemmAvx512>("gemm_wna16_avx512vnni", "gemm_wna16", Isa::kAvx512Vnni, can_wna16);
const LinearKernel kGemmWNa16Avx2 = float_row<kFloatGemmAvx2>("gemm_wna16_avx2", "gemm_wna16", Isa::kAvx2, can_wna16);
const LinearKernel kGemmFp8Avx512Vnni =
    rounded_row<kFloatGemmAvx512>("gemm_fp8_avx512vnni", "gemm_fp8", Isa::kAvx512Vnni, can_fp8);
const LinearKernel kGemmFp8Avx2 = rounded_row<kFloatGemmAvx2>("gemm_fp8_avx2", "gemm_fp8", Isa::kAvx2, can_fp8);
const LinearKernel kGemmQdqAvx512Vnni =
    rounded_row<kFloatGemmAvx512>("gemm_qdq_avx512vnni", "gemm_qdq", Isa::kAvx512Vnni, can_qdq);
const LinearKernel kGemmQdqAvx2 = rounded_row<kFloatGemmAvx2>("gemm_qdq_avx2", "gemm_qdq", Isa::kAvx2, can_qdq);

const LinearKernel kGemmDequantThenGemm = {
    .name = "gemm_dequant_then_gemm",
    .op = "gemm_dequant_then_gemm",
    .isa = Isa::kReference,
    .only_by_name = true,
    .can_implement = can_naive,
    .form = f32_form,
    .workspace_bytes = naive_workspace_bytes,
    .prepack = keep_parts,
    .run = run_naive,
};

}  // namespace tare::kernels
