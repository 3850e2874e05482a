#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "checkpoints/fp8.h"

namespace tare::checkpoints {

using tensor::ActivationType;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::Tensor;

namespace {

// The form decides which of three spellings of the file it is.
//   tensor, block      quant_method fp8, scales multiply
//   row                quant_method fbgemm_fp8: fp8 itself has no scale a row that multiplies
//   divides            quant_method fp8 with weight_scale_semantics inverse (GPTQModel), weight-only
struct Form {
  std::string layout;  // "tensor", "row", "block"
  bool divides = false;
  int64_t block_rows = 0, block_columns = 0;
};

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses) {
  const QuantizedFields& f = matrix.weight->fields();
  const std::string where = matrix.name();
  if (is_embedding(matrix.module)) return store_dense(matrix, "a quantized embedding table", losses);
  const bool one_scale = f.a.has_value() != f.A.has_value();
  if (f.kind != tensor::CodeKind::kE4M3 || !one_scale || f.b || f.group_of_k || f.rule != tensor::Rule::kScaleFirst ||
      !std::holds_alternative<std::monostate>(f.z)) {
    return losses.refuse(where, describe(matrix.weight->spec()));
  }
  const Grid& scales = f.a ? *f.a : *f.A;
  const int64_t rows = ceil_div(f.n, scales.tile_n), columns = ceil_div(f.k, scales.tile_k);
  if (scales.origin_n != 0 || scales.origin_k != 0 || scales.stride != columns || f.code_stride != f.k) {
    return losses.refuse(where, "a view of another matrix");
  }
  Form form{.divides = f.A && f.A_divides};
  const bool whole_row = scales.tile_k >= f.k;
  // One block may be the whole matrix; inputs in groups of its width tell it from a scale a tensor.
  const bool grouped = matrix.activation.type == ActivationType::kE4M3 &&
                       matrix.activation.granularity == tensor::ActivationGranularity::kTokenGroup &&
                       matrix.activation.group_size == scales.tile_k && scales.tile_n > 1;
  if (!grouped && whole_row && scales.tile_n >= f.n) {
    form.layout = "tensor";
  } else if (whole_row && scales.tile_n == 1) {
    form.layout = "row";
  } else if (grouped || (scales.tile_n > 1 && scales.tile_k > 1)) {
    form = {.layout = "block", .divides = form.divides, .block_rows = scales.tile_n, .block_columns = scales.tile_k};
  } else {
    return losses.refuse(where, describe(matrix.weight->spec()));
  }
  const tensor::ActivationSpec& activation = matrix.activation;
  const bool fbgemm = form.layout == "row" && !form.divides;
  const bool dynamic = activation.dynamic && activation.symmetric;
  const bool fits = form.divides                               ? activation.type == ActivationType::kNone
                    : activation.type != ActivationType::kE4M3 ? false
                    : form.layout == "block"
                        ? dynamic && activation.granularity == tensor::ActivationGranularity::kTokenGroup &&
                              activation.group_size == scales.tile_k
                    : dynamic ? activation.granularity == tensor::ActivationGranularity::kToken
                              : !fbgemm && activation.granularity == tensor::ActivationGranularity::kTensor;
  if (!fits || (activation.cap > 0 && !fbgemm)) {
    TARE_TRY(losses.lose(where, fmt::format("inputs {}: a reader of this form takes {}", describe(activation),
                                            form.divides ? "none" : "dynamic e4m3")));
  }
  StoredMatrix out;
  const auto add = [&](std::string_view suffix, Result<Tensor> tensor) -> Status {
    return out.add(matrix, suffix, std::move(tensor));
  };
  TARE_TRY(add("weight", Tensor::make(DType::kF8E4M3, {f.n, f.k}, f.codes.slice(0, static_cast<size_t>(f.n * f.k)))));
  const tensor::Shape shape = form.layout == "tensor" ? tensor::Shape{}
                              : form.layout == "row"  ? (fbgemm ? tensor::Shape{f.n, 1} : tensor::Shape{f.n})
                              : rows * columns == 1   ? tensor::Shape{}
                                                      : tensor::Shape{rows, columns};
  const std::string_view suffix = form.layout == "block" || form.divides ? "weight_scale_inv" : "weight_scale";
  const bool e8m0 = scales.type == GridType::kE8M0;
  if (e8m0 && form.layout == "block" && !form.divides) {
    TARE_TRY(
        add(suffix, Tensor::make(DType::kF8E8M0, shape, scales.values.slice(0, static_cast<size_t>(rows * columns)))));
  } else {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scales.value(static_cast<int64_t>(i));
    TARE_TRY(add(suffix, Tensor::make(DType::kF32, shape, Buffer::own(std::move(values)))));
  }
  const bool fixed = fits && activation.type == ActivationType::kE4M3 && !activation.dynamic;
  if (fixed) {
    TARE_TRY(add("input_scale", Tensor::make(DType::kF32, {}, Buffer::own(std::vector<float>{activation.scale}))));
  }
  out.scheme = {{"layout", form.layout},
                {"divides", form.divides},
                {"block", json::array{form.block_rows, form.block_columns}},
                {"static", fixed},
                {"cap", fbgemm ? activation.cap : 0.0f},
                {"e8m0", e8m0 && form.layout == "block"}};
  return out;
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   const WriteRequest&) {
  TARE_ASSIGN(const json::object first, only_scheme(modules, "fp8", "write it as compressed-tensors or tare"));
  json::array skipped;
  bool head = false;
  for (const WrittenModule& module : modules) head = head || module.module == "lm_head";
  for (const std::string& name : dense) {
    if (!is_embedding(name)) skipped.emplace_back(name);
    head = head || name == "lm_head";
  }
  if (!head) skipped.emplace_back("lm_head");
  const std::string layout(first.at("layout").as_string());
  if (first.at("divides").as_bool()) {
    json::object out{{"quant_method", "fp8"},
                     {"method", "fp8"},
                     {"bits", 8},
                     {"group_size", -1},
                     {"format", "float8_e4m3fn"},
                     {"checkpoint_format", "float8_e4m3fn"},
                     {"weight_scale_method", layout},
                     {"weight_scale_semantics", "inverse"}};
    if (layout == "block") out["weight_block_size"] = first.at("block");
    return out;
  }
  if (layout == "row") {
    // Its readers want the bound; one that no float16 reaches bounds nothing.
    const double cap = first.at("cap").to_number<double>();
    return json::object{{"quant_method", "fbgemm_fp8"},
                        {"activation_scale_ub", cap > 0 ? cap : 1.0e30},
                        {"modules_to_not_convert", std::move(skipped)}};
  }
  json::object out{{"quant_method", "fp8"},
                   {"activation_scheme", first.at("static").as_bool() ? "static" : "dynamic"},
                   {"ignored_layers", skipped},
                   {"modules_to_not_convert", skipped}};
  if (layout == "block") {
    out["weight_block_size"] = first.at("block");
    out["scale_fmt"] = first.at("e8m0").as_bool() ? "ue8m0" : "float";
  }
  return out;
}

}  // namespace

CheckpointWriter fp8_writer() {
  return {.name = "fp8",
          .writes = "e4m3 with a scale a tensor or block (fp8), a row (fbgemm_fp8), or dividing (GPTQModel's form)",
          .store = store,
          .configuration = configuration};
}

}  // namespace tare::checkpoints
