#include "kernels/reference/gemm.h"

#include <cassert>
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/reference/activations.h"

namespace tare::kernels {

namespace {

using tensor::ActivationSpec;
using tensor::ActivationType;
using tensor::CodeKind;
using tensor::Grid;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::Rule;
using tensor::Tensor;
using tensor::Weight;

class ReferenceLinear final : public PackedLinear {
 public:
  LinearProblem problem;
  std::vector<Weight> parts;  // shares the bytes of the model
  std::vector<float> bias;

  int64_t bytes() const override { return static_cast<int64_t>(bias.size() * sizeof(float)); }
};

// One weight row as integers: w = scale * integer + minimum.
struct IntegerRow {
  std::vector<int32_t> values;
  float scale = 1;
  float minimum = 0;
  bool has_minimum = false;
};

bool spans_row(const Grid& grid, int64_t k) {
  return grid.tile_k >= k + grid.origin_k;
}
bool is_whole(float value) {
  return std::nearbyint(value) == value && std::fabs(value) < 32768;
}

// Whether rows of this tensor are integers with one scale each (and maybe one minimum).
bool has_integer_rows(const QuantizedTensor& t) {
  const QuantizedFields& f = t.fields();
  if (f.kind != CodeKind::kUint && f.kind != CodeKind::kInt) return false;
  if (f.A && !spans_row(*f.A, f.k)) return false;
  if (f.rule == Rule::kIntegerFirst) return true;
  if (f.rule != Rule::kScaleFirst || f.group_of_k) return false;
  if ((f.a && !spans_row(*f.a, f.k)) || (f.b && !spans_row(*f.b, f.k)) || (f.B && !spans_row(*f.B, f.k))) return false;
  if (const float* constant = std::get_if<float>(&f.z)) return is_whole(*constant);
  if (const Grid* grid = std::get_if<Grid>(&f.z)) return tensor::is_integer(grid->type) && spans_row(*grid, f.k);
  return true;
}

IntegerRow integer_row(const QuantizedTensor& t, int64_t n) {
  const QuantizedFields& f = t.fields();
  IntegerRow row;
  row.values.resize(static_cast<size_t>(f.k));
  const auto at = [&](const Grid& grid, int64_t k) { return grid.row_index(n) + t.group(grid, k); };
  const float outer = f.A ? f.A->value(f.A->row_index(n)) : 1.0f;
  const std::vector<float> values = tensor::code_values(f);
  const float* constant = std::get_if<float>(&f.z);
  const Grid* zeros = std::get_if<Grid>(&f.z);
  for (int64_t k = 0; k < f.k; ++k) {
    auto value = static_cast<int32_t>(values[t.code(n, k)]);
    if (f.rule == Rule::kScaleFirst) {
      value -= constant ? static_cast<int32_t>(*constant) : zeros ? zeros->integer(at(*zeros, k)) : 0;
    } else if (!f.round_inner) {
      value = (f.a ? f.a->integer(at(*f.a, k)) : 1) * value + (f.b ? f.b->integer(at(*f.b, k)) : 0);
    }
    row.values[static_cast<size_t>(k)] = value;
  }
  if (f.rule == Rule::kIntegerFirst && f.round_inner) {
    // The bracket is rounded in floating point: take it from the one definition, with the outer scale removed.
    QuantizedFields inner = f;
    inner.A.reset();
    std::vector<float> bracket(static_cast<size_t>(f.k));
    tensor::dequantize(*QuantizedTensor::make(std::move(inner)), n, n + 1, bracket.data());
    for (size_t k = 0; k < bracket.size(); ++k) row.values[k] = static_cast<int32_t>(bracket[k]);
  }
  row.scale = outer;
  if (f.rule == Rule::kScaleFirst) {
    const float inner = f.a ? f.a->value(f.a->row_index(n)) : 1.0f;
    row.scale = !f.A ? inner : f.A_divides ? inner / outer : outer * inner;
    if (f.b) {
      row.has_minimum = true;
      row.minimum = f.b->value(f.b->row_index(n));
      if (f.B_is_A) row.minimum = outer * row.minimum;
      if (f.B) row.minimum = f.B->value(f.B->row_index(n)) * row.minimum;
    }
  } else if (f.A_divides) {
    row.scale = 1.0f / outer;
  }
  return row;
}

bool has_integer_tokens(const ActivationSpec& spec, const ReferenceActivations& x) {
  return x.groups == 1 &&
         (spec.type == ActivationType::kS8 || spec.type == ActivationType::kU8 || spec.type == ActivationType::kS4);
}

// The exact formula of linear.h, bias apart.
float integer_product(const ReferenceActivations& x, int64_t m, const IntegerRow& w) {
  const int32_t* q = x.codes.data() + m * x.k;
  const auto index = static_cast<size_t>(m);
  int64_t acc = 0, weight_sum = 0, token_sum = 0;
  for (int64_t k = 0; k < x.k; ++k) {
    acc += static_cast<int64_t>(q[k]) * w.values[static_cast<size_t>(k)];
    weight_sum += w.values[static_cast<size_t>(k)];
    token_sum += q[k];
  }
  acc -= x.zero[index] * weight_sum;
  assert(acc == static_cast<int32_t>(acc));
  float y = static_cast<float>(static_cast<int32_t>(acc)) * (w.scale * x.scale[index]);
  if (w.has_minimum) {
    y += w.minimum * (x.scale[index] * static_cast<float>(static_cast<int32_t>(token_sum - x.zero[index] * x.k)));
  }
  return y;
}

double outlier_product(const ReferenceActivations& x, int64_t m, const float* w) {
  double sum = 0;
  for (int64_t k = 0; k < x.k; ++k) sum += static_cast<double>(x.outliers[static_cast<size_t>(m * x.k + k)]) * w[k];
  return sum;
}

double dequantized_product(const ActivationSpec& spec, const ReferenceActivations& x, int64_t m, const float* w) {
  double sum = 0;
  for (int64_t k = 0; k < x.k; ++k) {
    const double scale = x.scale[static_cast<size_t>(m * x.groups + k / x.group_size)];
    sum += scale * static_cast<double>(x.unscaled(spec, m, k)) * w[k];
  }
  return sum;
}

double float_product(const float* x, int64_t k, const float* w) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(x[i]) * w[i];
  return sum;
}

Verdict can_implement(const LinearProblem&, const machine::Capabilities&) {
  return Verdict::yes();
}

ActivationForm form(const LinearProblem&) {
  return {};
}

int64_t workspace_bytes(const LinearProblem&, int64_t, int) {
  return 0;
}

Result<std::unique_ptr<PackedLinear>> prepack(const LinearProblem& problem, std::span<const Weight> parts,
                                              std::span<const float> bias, ThreadPool&) {
  auto packed = std::make_unique<ReferenceLinear>();
  packed->problem = problem;
  packed->parts.assign(parts.begin(), parts.end());
  packed->bias.assign(bias.begin(), bias.end());
  return std::unique_ptr<PackedLinear>(std::move(packed));
}

void run(const PackedLinear& packed, const Activations& x, float* out, int64_t out_stride, std::span<std::byte>,
         ThreadPool& pool) {
  const auto& linear = static_cast<const ReferenceLinear&>(packed);
  const ActivationSpec& spec = linear.problem.activation;
  const auto* values = static_cast<const float*>(x.data);
  std::optional<ReferenceActivations> codes;
  if (spec.type != ActivationType::kNone) codes = quantize_reference(spec, values, x.m, x.k, x.row_stride);

  int64_t first_row = 0;
  for (const Weight& part : linear.parts) {
    const auto* quantized = std::get_if<QuantizedTensor>(&part);
    const int64_t rows = tensor::shape_of(part)[0];
    const bool integers = quantized && codes && has_integer_tokens(spec, *codes) && has_integer_rows(*quantized);
    pool.parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> w(static_cast<size_t>(x.k));
      for (int64_t n = begin; n < end; ++n) {
        if (quantized) {
          tensor::dequantize(*quantized, n, n + 1, w.data());
        } else {
          // Dtypes were checked when the problem was made; a failure here would leave NaN behind.
          const Status read = tensor::to_f32(std::get<Tensor>(part), n * x.k, x.k, w.data());
          if (!read.ok()) w.assign(w.size(), std::numeric_limits<float>::quiet_NaN());
        }
        const IntegerRow row = integers ? integer_row(*quantized, n) : IntegerRow{};
        for (int64_t m = 0; m < x.m; ++m) {
          float y;
          if (integers) {
            y = integer_product(*codes, m, row);
            if (!codes->outliers.empty()) y += static_cast<float>(outlier_product(*codes, m, w.data()));
          } else if (codes) {
            double sum = dequantized_product(spec, *codes, m, w.data());
            if (!codes->outliers.empty()) sum += outlier_product(*codes, m, w.data());
            y = static_cast<float>(sum);
          } else {
            y = static_cast<float>(float_product(values + m * x.row_stride, x.k, w.data()));
          }
          if (!linear.bias.empty()) y += linear.bias[static_cast<size_t>(first_row + n)];
          out[m * out_stride + first_row + n] = y;
        }
      }
    });
    first_row += rows;
  }
}

}  // namespace

const LinearKernel kGemmReference = {
    .name = "gemm_reference",
    .op = "gemm",
    .isa = machine::Isa::kReference,
    .can_implement = can_implement,
    .form = form,
    .workspace_bytes = workspace_bytes,
    .prepack = prepack,
    .run = run,
};

}  // namespace tare::kernels
