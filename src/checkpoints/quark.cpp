#include "checkpoints/quark.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include "checkpoints/module_pattern.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::ActivationType;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct QuarkSpec {
  bool present = false;
  std::string dtype;    // fp8_e4m3, int8
  std::string qscheme;  // per_tensor, per_channel
  bool dynamic = false;
  bool symmetric = true;
};

Result<QuarkSpec> read_spec(const json::object& from, std::string_view key, const std::string& where) {
  QuarkSpec out;
  const json::value* v = json::find(from, key);
  if (!v) return out;
  if (!v->is_object()) return invalid_input("bad quantization settings", {.where = fmt::format("{}.{}", where, key)});
  const json::object& o = v->get_object();
  const std::string spec_where = fmt::format("{}.{}", where, key);
  out.present = true;
  TARE_ASSIGN(out.dtype, json::get_string(o, "dtype", spec_where));
  TARE_ASSIGN(out.qscheme, json::get_string(o, "qscheme", spec_where));
  TARE_ASSIGN(out.dynamic, json::get_bool_or(o, "is_dynamic", false, spec_where));
  TARE_ASSIGN(out.symmetric, json::get_bool_or(o, "symmetric", true, spec_where));
  return out;
}

// The settings of a module: the first layer pattern that matches, else those for all.
Result<const json::object*> settings_of(const json::object& q, const std::string& module, const std::string& where) {
  if (const json::value* layers = json::find(q, "layer_quant_config"); layers && layers->is_object()) {
    for (const auto& [pattern, value] : layers->get_object()) {
      if (::fnmatch(std::string(pattern).c_str(), module.c_str(), 0) == 0 && value.is_object()) {
        return &value.get_object();
      }
    }
  }
  const json::value* global = json::find(q, "global_quant_config");
  if (!global || !global->is_object()) return invalid_input("'global_quant_config' is missing", {.where = where});
  return &global->get_object();
}

Result<bool> excluded(const json::object& q, const std::string& module, const std::string& where) {
  TARE_ASSIGN(const std::vector<std::string> list, string_list(q, "exclude", where));
  for (const std::string& entry : list) {
    if (entry.starts_with("re:")) {
      TARE_ASSIGN(const ModulePattern pattern, ModulePattern::compile(entry.substr(3), where));
      if (pattern.matches(module)) return true;
    } else if (entry == module) {
      return true;
    }
  }
  return false;
}

Status read_module(Source& source, const std::string& module, tensor::ModelWeights& out) {
  const json::object& q = source.quantization;
  const std::string& where = source.quantization_where;
  Parts parts(source, module);
  TARE_ASSIGN(const bool skip, excluded(q, module, where));
  if (skip) return parts.contradiction("weight_scale", "dense, as exclude says", "quantized");
  TARE_ASSIGN(const json::object* settings, settings_of(q, module, where));
  TARE_ASSIGN(const QuarkSpec weight, read_spec(*settings, "weight", where));
  TARE_ASSIGN(const QuarkSpec input, read_spec(*settings, "input_tensors", where));
  const bool fp8 = weight.dtype == "fp8_e4m3";
  if (!weight.present || (!fp8 && weight.dtype != "int8")) {
    return unsupported("Quark weight type", {.where = parts.name("weight"),
                                             .expected = "fp8_e4m3 or int8",
                                             .found = weight.present ? weight.dtype : "none",
                                             .hint = "the packed order of 4-bit types is not documented"});
  }
  if (weight.qscheme != "per_tensor" && weight.qscheme != "per_channel") {
    return unsupported("Quark weight granularity", {.where = parts.name("weight"), .found = weight.qscheme});
  }
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("weight", 2));
  const int64_t n = shape[0], k = shape[1];
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {fp8 ? DType::kF8E4M3 : DType::kI8}, shape));
  const bool row = weight.qscheme == "per_channel";
  Tensor scale;
  if (row) {
    TARE_ASSIGN(scale, parts.take_shaped("weight_scale", kFloats, {{n}, {n, 1}}));
  } else {
    TARE_ASSIGN(scale, parts.take_shaped("weight_scale", kFloats, {{}, {1}}));
  }
  std::optional<Tensor> zero;
  if (parts.has("weight_zero_point")) {
    TARE_ASSIGN(zero, parts.take("weight_zero_point", {DType::kI8}, scale.shape));
  } else if (!weight.symmetric) {
    return parts.contradiction("weight_zero_point", "a zero point, since the weights are asymmetric", "none");
  }
  tensor::ActivationSpec activation;
  if (input.present) {
    if (input.dtype != "fp8_e4m3" && input.dtype != "int8") {
      return unsupported("Quark activation type", {.where = parts.module(), .found = input.dtype});
    }
    activation.type = input.dtype == "int8" ? ActivationType::kS8 : ActivationType::kE4M3;
    activation.dynamic = input.dynamic;
    activation.symmetric = input.symmetric;
    if (input.qscheme == "per_tensor") activation.granularity = tensor::ActivationGranularity::kTensor;
    if (!input.dynamic) {
      TARE_ASSIGN(activation.scale, parts.take_scalar("input_scale", kFloats));
      if (parts.has("input_zero_point")) {
        TARE_ASSIGN(const float value, parts.take_scalar("input_zero_point", {DType::kI8}));
        activation.zero = static_cast<int32_t>(value);
      }
    } else {
      activation.granularity = tensor::ActivationGranularity::kToken;
    }
  }
  const int64_t bytes = parts.bytes();
  const int64_t rows = row ? 1 : n;
  const std::string name = parts.name("weight");
  tensor::QuantSpec spec{.kind = fp8 ? tensor::CodeKind::kE4M3 : tensor::CodeKind::kInt, .bits = 8};
  spec.group_n = rows;
  spec.group_size = k;
  if (zero) spec.zero = tensor::ZeroKind::kInteger;
  return add_quantized(out, name, shape, spec, activation, bytes, [=]() -> Result<tensor::QuantizedTensor> {
    tensor::QuantizedFields f{.n = n, .k = k, .kind = spec.kind, .bits = 8};
    if (fp8) TARE_TRY(check_e4m3(codes.data, name));
    f.codes = codes.data;
    TARE_ASSIGN(f.a, Grid::make(grid_type(scale.dtype), n, k, rows, k, scale.data));
    if (zero) {
      TARE_ASSIGN(Grid z, Grid::make(GridType::kS8, n, k, rows, k, zero->data));
      f.z = std::move(z);
    }
    f.origin = {.format = "quark", .bytes = bytes};
    return tensor::QuantizedTensor::make(std::move(f));
  });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("quark") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  const std::vector<std::string> modules = modules_with(source.tensors, "weight_scale");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "quantized weights", .found = "none"});
  }
  for (const std::string& module : modules) TARE_TRY(read_module(source, module, out));
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat quark_format() {
  return {
      .name = "quark",
      .min_capability = 70,
      .activation_dtypes = {"float16", "bfloat16"},
      .reads = "fp8 and int8 weights per tensor and per channel",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
