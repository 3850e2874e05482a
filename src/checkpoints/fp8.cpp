#include "checkpoints/fp8.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "checkpoints/gptq_config.h"
#include "checkpoints/online.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::Tensor;

namespace {

enum class Layout { kTensor, kRow, kBlock };

struct Fp8Config {
  Layout layout = Layout::kTensor;
  int64_t block_rows = 128, block_columns = 128;
  bool inverse = false;      // the stored scale divides (GPTQModel)
  bool weight_only = false;  // no activation scheme (GPTQModel)
  bool static_activations = false;
  std::string scale_fmt;
  std::vector<std::string> dense_modules;
  std::string where;
};

Result<Fp8Config> parse_config(const json::object& q, const std::string& where, std::vector<std::string>& notes) {
  Fp8Config out{.where = where};
  if (const json::value* block = json::find(q, "weight_block_size")) {
    const json::array* list = block->if_array();
    const auto rows = list && list->size() == 2 ? json::as_int((*list)[0]) : std::nullopt;
    const auto columns = list && list->size() == 2 ? json::as_int((*list)[1]) : std::nullopt;
    if (!rows || !columns || *rows < 1 || *columns < 1) {
      return invalid_input("bad 'weight_block_size'", {.where = where, .expected = "[rows, columns]"});
    }
    out.layout = Layout::kBlock;
    out.block_rows = *rows;
    out.block_columns = *columns;
  }
  if (const json::value* semantics = json::find(q, "weight_scale_semantics")) {
    if (*semantics != json::value("inverse")) {
      return unsupported("meaning of the weight scale",
                         {.where = where, .expected = "inverse", .found = boost::json::serialize(*semantics)});
    }
    out.inverse = true;
  }
  if (json::find(q, "weight_scale_method")) {
    TARE_ASSIGN(const std::string method, json::get_string(q, "weight_scale_method", where));
    if (method != "row" && method != "tensor" && method != "block") {
      return unsupported("weight_scale_method", {.where = where, .found = method});
    }
    if ((method == "block") != (out.layout == Layout::kBlock)) {
      return invalid_input("weight_scale_method and weight_block_size contradict each other",
                           {.where = where, .found = method});
    }
    if (method == "row") out.layout = Layout::kRow;
  }
  TARE_ASSIGN(out.scale_fmt, json::get_string_or(q, "scale_fmt", "", where));
  if (out.scale_fmt != "" && out.scale_fmt != "float" && out.scale_fmt != "ue8m0") {
    return unsupported("scale_fmt", {.where = where, .expected = "float or ue8m0", .found = out.scale_fmt});
  }
  TARE_ASSIGN(const std::string scheme, json::get_string_or(q, "activation_scheme", "", where));
  if (scheme == "static") {
    out.static_activations = true;
  } else if (scheme.empty() && out.inverse) {
    out.weight_only = true;
  } else if (scheme.empty()) {
    notes.push_back("activation_scheme is absent: dynamic, as transformers takes it");
  } else if (scheme != "dynamic") {
    return unsupported("activation_scheme", {.where = where, .expected = "static or dynamic", .found = scheme});
  }
  if (out.static_activations && out.layout == Layout::kBlock) {
    return invalid_input("configuration contradicts itself",
                         {.where = where, .found = "weight_block_size with static activations"});
  }
  for (const std::string_view key : {"ignored_layers", "modules_to_not_convert"}) {
    TARE_ASSIGN(const std::vector<std::string> list, string_list(q, key, where));
    out.dense_modules.insert(out.dense_modules.end(), list.begin(), list.end());
  }
  return out;
}

Status read_module(Source& source, const Fp8Config& config, const std::string& module, tensor::ModelWeights& out) {
  Parts parts(source, module);
  for (const std::string& entry : config.dense_modules) {
    if (names_module(entry, module)) {
      return parts.contradiction("weight", "dense, as " + entry + " in " + config.where + " says", "F8_E4M3");
    }
  }
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("weight", 2));
  const int64_t n = shape[0], k = shape[1];
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {DType::kF8E4M3}, shape));
  const bool inv_name = parts.has("weight_scale_inv");
  const std::string_view suffix = inv_name ? "weight_scale_inv" : "weight_scale";
  static constexpr std::initializer_list<DType> kScaleTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0};
  Tensor scale;
  int64_t tile_n = n, tile_k = k;
  if (config.layout == Layout::kBlock) {
    tile_n = config.block_rows;
    tile_k = config.block_columns;
    const tensor::Shape grid{ceil_div(n, tile_n), ceil_div(k, tile_k)};
    // A single block may come as a scalar.
    if (grid == tensor::Shape{1, 1}) {
      TARE_ASSIGN(scale, parts.take_shaped(suffix, kScaleTypes, {grid, {}, {1}}));
    } else {
      TARE_ASSIGN(scale, parts.take(suffix, kScaleTypes, grid));
    }
  } else if (config.layout == Layout::kRow) {
    tile_n = 1;
    TARE_ASSIGN(scale, parts.take_shaped(suffix, kScaleTypes, {{n}, {n, 1}}));
  } else {
    TARE_ASSIGN(scale, parts.take_shaped(suffix, kScaleTypes, {{}, {1}}));
  }
  const bool e8m0 = scale.dtype == DType::kF8E8M0;
  if (!config.scale_fmt.empty() && e8m0 != (config.scale_fmt == "ue8m0")) {
    return parts.contradiction(suffix, "scale_fmt " + config.scale_fmt, std::string(dtype_name(scale.dtype)));
  }
  tensor::ActivationSpec activation;
  if (!config.weight_only) {
    activation.type = tensor::ActivationType::kE4M3;
    if (config.static_activations) {
      activation.dynamic = false;
      activation.granularity = tensor::ActivationGranularity::kTensor;
      TARE_ASSIGN(activation.scale, parts.take_scalar("input_scale", kFloats));
      if (!(activation.scale > 0))
        return parts.contradiction("input_scale", "above 0", fmt::format("{}", activation.scale));
    } else if (config.layout == Layout::kBlock) {
      activation.granularity = tensor::ActivationGranularity::kTokenGroup;
      activation.group_size = config.block_columns;
    }
  }
  const int64_t bytes = parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kE4M3, .bits = 8};
  spec.group_n = std::min(tile_n, n);
  spec.group_size = std::min(tile_k, k);
  if (config.inverse) {
    spec.has_inner_scale = false;
    spec.has_outer_scale = true;
    spec.outer_group_n = spec.group_n;
    spec.outer_group_size = spec.group_size;
  }
  const bool inverse = config.inverse;
  const std::string name = parts.name("weight");
  return add_quantized(out, name, shape, spec, activation, bytes, [=]() -> Result<tensor::QuantizedTensor> {
    TARE_TRY(check_e4m3(codes.data, name));
    tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE4M3, .bits = 8};
    f.codes = codes.data;
    TARE_ASSIGN(Grid grid, Grid::make(grid_type(scale.dtype), n, k, tile_n, tile_k, scale.data));
    if (inverse) {
      f.A = std::move(grid);
      f.A_divides = true;
      f.code_first = true;
    } else {
      f.a = std::move(grid);
    }
    f.origin = {.format = "fp8", .bytes = bytes};
    return tensor::QuantizedTensor::make(std::move(f));
  });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("fp8") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const Fp8Config config, parse_config(source.quantization, source.quantization_where, source.notes));
  TARE_TRY(check_side_file(source, "quantize_config.json"));
  size_t count = 0;
  for (const std::string& module : modules_with(source.tensors, "weight")) {
    // A matrix is FP8 exactly when its codes are: lists in the configuration are held against that.
    if (source.tensors.find(module + ".weight")->dtype != DType::kF8E4M3) continue;
    TARE_TRY(read_module(source, config, module, out));
    ++count;
  }
  if (count == 0) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = config.where, .expected = "F8_E4M3 weights", .found = "none"});
  }
  if (!config.weight_only && !config.static_activations && config.layout != Layout::kBlock) {
    source.notes.push_back("dynamic FP8 activations are scaled for each token, not over all tokens of a batch");
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat fp8_format() {
  return {
      .name = "fp8",
      .min_capability = 80,
      .activation_dtypes = {"bfloat16", "float16"},
      .reads = "e4m3 weights with scales per tensor, row (GPTQModel) or block, static or dynamic activations",
      .online = true,
      .detect = detect,
      .read = read,
      .quantize = quantize_fp8_per_tensor,
  };
}

}  // namespace tare::checkpoints
