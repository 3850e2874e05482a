#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "checkpoints/affine.h"
#include "checkpoints/qserve.h"
#include "checkpoints/qserve_layout.h"
#include "numerics/mini_float.h"

namespace tare::checkpoints {

using tensor::CodeKind;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::Tensor;

namespace {

bool per_row(const Grid& grid, const QuantizedFields& f) {
  return grid.tile_n == 1 && grid.tile_k >= f.k && grid.origin_k == 0 && grid.stride == 1;
}

class Store {
 public:
  Store(const MatrixToStore& matrix, Losses& losses)
      : matrix_(matrix), f_(matrix.weight->fields()), losses_(losses), where_(matrix.name()) {}

  Result<StoredMatrix> run() {
    const tensor::ActivationSpec& a = matrix_.activation;
    if (a.type != tensor::ActivationType::kS8 || !a.dynamic || !a.symmetric || a.outlier_threshold > 0 ||
        a.granularity != tensor::ActivationGranularity::kToken) {
      TARE_TRY(losses_.lose(where_, fmt::format("inputs {}: QServe's are s8 a token", describe(a))));
    }
    if (f_.kind == CodeKind::kInt && f_.bits == 8) {
      TARE_TRY(store_w8());
    } else if (f_.kind != CodeKind::kUint || f_.bits != 4 || f_.group_of_k || f_.n % 32 != 0 || f_.k % 32 != 0) {
      return losses_.refuse(where_, fmt::format("{} of [{}, {}]", describe(matrix_.weight->spec()), f_.n, f_.k));
    } else if (f_.rule == tensor::Rule::kIntegerFirst) {
      TARE_TRY(store_groups());
    } else {
      TARE_TRY(store_rows());
    }
    return std::move(out_);
  }

 private:
  Status add(std::string_view suffix, Result<Tensor> tensor) { return out_.add(matrix_, suffix, std::move(tensor)); }

  Status add_halves(std::string_view suffix, const std::vector<float>& values) {
    AffineMatrix m{.n = f_.n, .k = f_.k, .groups = 1, .scales = values};
    m.scale_dtype = DType::kF32;
    TARE_ASSIGN(std::vector<uint16_t> halves, half_scales(m, DType::kF16, where_, losses_));
    return add(suffix, Tensor::make(DType::kF16, {f_.n}, Buffer::own(std::move(halves))));
  }

  Status add_codes() {
    std::vector<uint8_t> codes(static_cast<size_t>(f_.n * f_.k / 2));
    for (int64_t n = 0; n < f_.n; ++n) {
      for (int64_t k = 0; k < f_.k; ++k) {
        codes[static_cast<size_t>(qserve_byte(n, k, f_.k))] |=
            static_cast<uint8_t>(matrix_.weight->code(n, k) << qserve_shift(n));
      }
    }
    return add("qweight", Tensor::make(DType::kI8, {f_.n, f_.k / 2}, Buffer::own(std::move(codes))));
  }

  Status store_w8() {
    if (!f_.a || f_.A || f_.b || !per_row(*f_.a, f_) || !std::holds_alternative<std::monostate>(f_.z) ||
        f_.code_stride != f_.k) {
      return losses_.refuse(where_, describe(matrix_.weight->spec()));
    }
    std::vector<float> scales;
    for (int64_t n = 0; n < f_.n; ++n) scales.push_back(f_.a->value(n));
    TARE_TRY(
        add("weight", Tensor::make(DType::kI8, {f_.n, f_.k}, f_.codes.slice(0, static_cast<size_t>(f_.n * f_.k)))));
    return add_halves("dequant_scale", scales);
  }

  // Groups: w = s1 * (code * s2 + zero), zero = -(z * s2), both second-level numbers bytes.
  Status store_groups() {
    const bool integers = f_.a && f_.a->type != GridType::kF32 && tensor::is_integer(f_.a->type) && !f_.round_inner;
    const bool zero = !std::holds_alternative<std::monostate>(f_.z);
    if (!integers || zero || !f_.A || f_.A_divides || !per_row(*f_.A, f_) || f_.a->tile_n != 1) {
      return losses_.refuse(where_, describe(matrix_.weight->spec()));
    }
    const int64_t group = std::min(f_.a->tile_k, f_.k);
    if (f_.k % group != 0) {
      return losses_.refuse(where_, fmt::format("groups of {} over {} columns: the last one is short", group, f_.k));
    }
    if (f_.b && (f_.b->tile_k != f_.a->tile_k || f_.b->tile_n != 1))
      return losses_.refuse(where_, "minima on another grid");
    const int64_t groups = f_.k / group;
    std::vector<int8_t> scales(static_cast<size_t>(groups * f_.n)), zeros(scales.size());
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t p = 0; p < f_.n; ++p) {
        const int64_t n = qserve_channel(p);
        const int32_t scale = f_.a->integer(f_.a->row_index(n) + g);
        const int32_t minimum = f_.b ? f_.b->integer(f_.b->row_index(n) + g) : 0;
        if (scale < 0 || scale > 127 || minimum < -128 || minimum > 127 || 15 * scale + minimum > 127) {
          return losses_.refuse(
              where_, fmt::format("a group that leaves int8 (row {}, group {}: {} and {})", n, g, scale, minimum));
        }
        scales[static_cast<size_t>(g * f_.n + p)] = static_cast<int8_t>(scale);
        zeros[static_cast<size_t>(g * f_.n + p)] = static_cast<int8_t>(minimum);
      }
    }
    std::vector<float> rows;
    for (int64_t n = 0; n < f_.n; ++n) rows.push_back(f_.A->value(n));
    TARE_TRY(add_codes());
    TARE_TRY(add_halves("s1_scales", rows));
    TARE_TRY(add("s2_scales", Tensor::make(DType::kI8, {groups, f_.n}, Buffer::own(std::move(scales)))));
    return add("s2_zeros", Tensor::make(DType::kI8, {groups, f_.n}, Buffer::own(std::move(zeros))));
  }

  // Rows: w = code * s1 - szero, szero = z * s1.
  Status store_rows() {
    if (!f_.a || f_.A || !per_row(*f_.a, f_) || (f_.b && !per_row(*f_.b, f_)) || f_.B || f_.B_is_A) {
      return losses_.refuse(where_, describe(matrix_.weight->spec()));
    }
    const Grid* zero = std::get_if<Grid>(&f_.z);
    const float* constant = std::get_if<float>(&f_.z);
    if ((zero || constant) && f_.b) return losses_.refuse(where_, "a zero point and a minimum");
    if (zero && !per_row(*zero, f_)) return losses_.refuse(where_, "zeros on another grid");
    std::vector<float> scales, zeros;
    for (int64_t n = 0; n < f_.n; ++n) {
      scales.push_back(f_.a->value(n));
      const float z = zero ? zero->value(n) : constant ? *constant : 0.0f;
      zeros.push_back(f_.b ? -f_.b->value(n) : z * scales.back());
    }
    TARE_TRY(add_codes());
    TARE_TRY(add_halves("s1_scales", scales));
    return add_halves("s1_szeros", zeros);
  }

  const MatrixToStore& matrix_;
  const QuantizedFields& f_;
  Losses& losses_;
  std::string where_;
  StoredMatrix out_;
};

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses) {
  if (is_embedding(matrix.module) || matrix.module == "lm_head") {
    return store_dense(matrix, "a quantized embedding table or head", losses);
  }
  return Store(matrix, losses).run();
}

// Its engine skips every tensor with "norm" in its name: they are expected to be folded into the weights.
Status check(const WriteRequest& request, Losses& losses) {
  for (const std::string& name : request.weights->names()) {
    if (name.find("norm") == name.npos) continue;
    TARE_ASSIGN(const tensor::Weight weight, request.weights->load(name));
    TARE_ASSIGN(const std::vector<float> values, tensor::to_f32(weight));
    if (std::all_of(values.begin(), values.end(), [](float v) { return v == 1.0f; })) continue;
    TARE_TRY(
        losses.lose(name, "a norm that is not folded into the next weights: QServe's engine skips it (tare reads it)"));
  }
  return {};
}

}  // namespace

CheckpointWriter qserve_writer() {
  return {.name = "qserve",
          .writes = "W4A8 per group (zero -(z s2)) and per channel (zero z s1), W8A8; as safetensors",
          .store = store,
          .check = check};
}

}  // namespace tare::checkpoints
