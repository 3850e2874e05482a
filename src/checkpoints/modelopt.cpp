#include "checkpoints/modelopt.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct ModelOptConfig {
  std::string algorithm;
  std::string kv;
  int64_t group_size = 16;
  std::vector<std::string> excluded;             // a trailing * matches any rest
  std::map<std::string, std::string> per_layer;  // MIXED_PRECISION: module -> algorithm
  std::string where;
};

// hf_quant_config.json has the settings one level down; config.json has them in place.
const json::object& settings(const json::object& q) {
  const json::value* inner = json::find(q, "quantization");
  return inner && inner->is_object() ? inner->get_object() : q;
}

bool is_modelopt(const Source& source) {
  const json::object& q = source.quantization;
  if (const json::value* method = json::find(q, "quant_method")) return *method == json::value("modelopt");
  const json::value* producer = json::find(q, "producer");
  const json::value* name = producer && producer->is_object() ? json::find(producer->get_object(), "name") : nullptr;
  return name && *name == json::value("modelopt");
}

Result<ModelOptConfig> parse(const Source& source) {
  const json::object& q = settings(source.quantization);
  ModelOptConfig out{.where = source.quantization_where};
  TARE_ASSIGN(out.algorithm, json::get_string(q, "quant_algo", out.where));
  if (json::find(q, "kv_cache_quant_algo")) {
    TARE_ASSIGN(out.kv, json::get_string(q, "kv_cache_quant_algo", out.where));
  }
  TARE_ASSIGN(out.group_size, json::get_int_or(q, "group_size", 16, out.where));
  for (const std::string_view key : {"exclude_modules", "ignore"}) {
    TARE_ASSIGN(const std::vector<std::string> list, string_list(q, key, out.where));
    out.excluded.insert(out.excluded.end(), list.begin(), list.end());
  }
  if (const json::value* layers = json::find(q, "quantized_layers"); layers && layers->is_object()) {
    for (const auto& [module, value] : layers->get_object()) {
      if (!value.is_object()) return invalid_input("bad 'quantized_layers'", {.where = out.where});
      TARE_ASSIGN(out.per_layer[std::string(module)], json::get_string(value.get_object(), "quant_algo", out.where));
    }
  }
  return out;
}

bool excluded(const ModelOptConfig& config, std::string_view module) {
  return std::any_of(config.excluded.begin(), config.excluded.end(), [&](std::string_view entry) {
    if (entry.ends_with("*")) return module.starts_with(entry.substr(0, entry.size() - 1));
    return entry == module;
  });
}

Status read_fp8(Parts& parts, bool per_channel, tensor::ModelWeights& out) {
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("weight", 2));
  const int64_t n = shape[0], k = shape[1];
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {DType::kF8E4M3}, shape));
  Tensor scale;
  if (per_channel) {
    TARE_ASSIGN(scale, parts.take_shaped("weight_scale", kFloats, {{n}, {n, 1}}));
  } else {
    TARE_ASSIGN(scale, parts.take_shaped("weight_scale", kFloats, {{}, {1}}));
  }
  tensor::ActivationSpec activation{.type = tensor::ActivationType::kE4M3};
  if (!per_channel) {
    activation.dynamic = false;
    activation.granularity = tensor::ActivationGranularity::kTensor;
    TARE_ASSIGN(activation.scale, parts.take_scalar("input_scale", kFloats));
    if (!(activation.scale > 0))
      return parts.contradiction("input_scale", "above 0", fmt::format("{}", activation.scale));
  }
  const int64_t bytes = parts.bytes();
  const int64_t rows = per_channel ? 1 : n;
  const std::string name = parts.name("weight");
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kE4M3, .bits = 8, .group_n = rows, .group_size = k};
  return add_quantized(out, name, shape, spec, activation, bytes, [=]() -> Result<tensor::QuantizedTensor> {
    TARE_TRY(check_e4m3(codes.data, name));
    tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE4M3, .bits = 8};
    f.codes = codes.data;
    TARE_ASSIGN(f.a, Grid::make(grid_type(scale.dtype), n, k, rows, k, scale.data));
    f.origin = {.format = "modelopt fp8", .bytes = bytes};
    return tensor::QuantizedTensor::make(std::move(f));
  });
}

Status read_nvfp4(Parts& parts, int64_t group, tensor::ModelWeights& out) {
  TARE_ASSIGN(const tensor::Shape packed, parts.shape("weight", 2));
  const int64_t n = packed[0], k = packed[1] * 2;
  if (k == 0 || group < 1 || k % group != 0) {
    return parts.contradiction("weight", fmt::format("columns in groups of {}", group), fmt::format("{}", k));
  }
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {DType::kU8}, packed));
  TARE_ASSIGN(const Tensor scale, parts.take("weight_scale", {DType::kF8E4M3}, {n, k / group}));
  TARE_ASSIGN(const float global, parts.take_scalar("weight_scale_2", {DType::kF32}));
  tensor::ActivationSpec activation;
  if (parts.has("input_scale")) {
    activation.type = tensor::ActivationType::kE2M1;
    activation.granularity = tensor::ActivationGranularity::kTokenGroup;
    activation.group_size = group;
    TARE_ASSIGN(activation.scale, parts.take_scalar("input_scale", {DType::kF32}));
  }
  const int64_t bytes = parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kE2M1, .bits = 4, .group_size = group, .has_outer_scale = true};
  spec.outer_group_n = n;
  spec.outer_group_size = k;
  return add_quantized(
      out, parts.name("weight"), {n, k}, spec, activation, bytes, [=]() -> Result<tensor::QuantizedTensor> {
        tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE2M1, .bits = 4};
        f.codes = codes.data;
        TARE_ASSIGN(f.a, Grid::make(GridType::kE4M3, n, k, 1, group, scale.data));
        TARE_ASSIGN(f.A, Grid::make(GridType::kF32, n, k, n, k, Buffer::own(std::vector<float>{global})));
        f.code_first = true;
        f.origin = {.format = "modelopt nvfp4", .bytes = bytes};
        return tensor::QuantizedTensor::make(std::move(f));
      });
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const ModelOptConfig config, parse(source));
  if (config.kv == "FP8") {
    out.kv = {"fp8_e4m3", "fp8_e4m3"};
  } else if (config.kv == "INT8") {
    out.kv = {"int8", "int8"};
  } else if (!config.kv.empty() && config.kv != "NONE") {
    source.notes.push_back(
        fmt::format("the checkpoint was made for a {} KV cache, which tare does not have", config.kv));
  }
  size_t count = 0;
  for (const std::string& module : modules_with(source.tensors, "weight_scale")) {
    Parts parts(source, module);
    if (excluded(config, module))
      return parts.contradiction("weight_scale", "dense, as " + config.where + " says", "quantized");
    std::string algorithm = config.algorithm;
    if (algorithm == "MIXED_PRECISION") {
      const auto at = config.per_layer.find(module);
      if (at == config.per_layer.end()) {
        return parts.contradiction("weight_scale", "dense, as quantized_layers does not name it", "quantized");
      }
      algorithm = at->second;
    }
    if (algorithm == "FP8" || algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
      TARE_TRY(read_fp8(parts, algorithm != "FP8", out));
    } else if (algorithm == "NVFP4") {
      TARE_TRY(read_nvfp4(parts, config.group_size, out));
    } else {
      return unsupported("ModelOpt algorithm", {.where = config.where,
                                                .expected = "FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4 or MIXED_PRECISION",
                                                .found = algorithm});
    }
    ++count;
  }
  if (count == 0) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = config.where, .expected = "quantized weights", .found = "none"});
  }
  return take_dense_rest(source, out);
}

bool is_nvfp4(const Source& source) {
  const json::value* algorithm = json::find(settings(source.quantization), "quant_algo");
  return algorithm && *algorithm == json::value("NVFP4");
}

}  // namespace

CheckpointFormat modelopt_format() {
  return {
      .name = "modelopt",
      .config_files = {"hf_quant_config.json"},
      .min_capability = 89,
      .activation_dtypes = {"bfloat16", "float16"},
      .reads = "FP8 per tensor and per channel, mixed precision",
      .detect = [](const Source& s) { return is_modelopt(s) && !is_nvfp4(s) ? Match::kYes : Match::kNo; },
      .read = read,
  };
}

CheckpointFormat nvfp4_format() {
  return {
      .name = "nvfp4",
      .aliases = {"modelopt_nvfp4", "modelopt_fp4"},
      .config_files = {"hf_quant_config.json"},
      .min_capability = 100,
      .activation_dtypes = {"bfloat16", "float16", "float8_e4m3fn"},
      .reads = "ModelOpt NVFP4",
      .stands_for = {"modelopt"},
      .accepts = [](const Source& source) -> Status {
        return invalid_input("named format contradicts the checkpoint",
                             {.where = source.quantization_where, .expected = "quant_algo NVFP4"});
      },
      .detect = [](const Source& s) { return is_modelopt(s) && is_nvfp4(s) ? Match::kYes : Match::kNo; },
      .read = read,
  };
}

}  // namespace tare::checkpoints
