#include "checkpoints/fbgemm_fp8.h"

#include <fmt/format.h>

#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::Tensor;

namespace {

Status read_module(Source& source, const std::string& module, float cap, const std::vector<std::string>& dense,
                   tensor::ModelWeights& out) {
  Parts parts(source, module);
  for (const std::string& entry : dense) {
    if (names_module(entry, module)) {
      return parts.contradiction("weight_scale", "dense, as modules_to_not_convert says", "quantized");
    }
  }
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("weight", 2));
  const int64_t n = shape[0], k = shape[1];
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {DType::kF8E4M3}, shape));
  TARE_ASSIGN(const Tensor scale, parts.take_shaped("weight_scale", kFloats, {{n, 1}, {n}}));
  const int64_t bytes = parts.bytes();
  const std::string name = parts.name("weight");
  const tensor::QuantSpec spec{.kind = tensor::CodeKind::kE4M3, .bits = 8, .group_n = 1, .group_size = k};
  return add_quantized(out, name, shape, spec, {.type = tensor::ActivationType::kE4M3, .cap = cap}, bytes,
                       [=]() -> Result<tensor::QuantizedTensor> {
                         TARE_TRY(check_e4m3(codes.data, name));
                         tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE4M3, .bits = 8};
                         f.codes = codes.data;
                         TARE_ASSIGN(f.a, Grid::make(grid_type(scale.dtype), n, k, 1, k, scale.data));
                         f.origin = {.format = "fbgemm_fp8", .bytes = bytes};
                         return tensor::QuantizedTensor::make(std::move(f));
                       });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("fbgemm_fp8") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  const std::string& where = source.quantization_where;
  TARE_ASSIGN(const double cap, json::get_number_or(source.quantization, "activation_scale_ub", 1200.0, where));
  if (!(cap > 0)) return invalid_input("bad 'activation_scale_ub'", {.where = where, .found = fmt::format("{}", cap)});
  // A bound that no number of 16 bits reaches is none.
  const float bound = cap >= 1.0e30 ? 0.0f : static_cast<float>(cap);
  TARE_ASSIGN(const std::vector<std::string> dense, string_list(source.quantization, "modules_to_not_convert", where));
  const std::vector<std::string> modules = modules_with(source.tensors, "weight_scale");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = where, .expected = "FP8 weights", .found = "none"});
  }
  for (const std::string& module : modules) {
    TARE_TRY(read_module(source, module, bound, dense, out));
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat fbgemm_fp8_format() {
  return {
      .name = "fbgemm_fp8",
      .min_capability = 80,
      .activation_dtypes = {"bfloat16", "float16"},
      .reads = "e4m3 per row; activations per token, their largest value capped",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
