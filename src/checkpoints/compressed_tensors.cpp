#include "checkpoints/compressed_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/checked.h"
#include "checkpoints/sparse24.h"
#include "checkpoints/sparse_bitmask.h"

namespace tare::checkpoints {

using tensor::ActivationGranularity;
using tensor::ActivationSpec;
using tensor::ActivationType;
using tensor::DType;
using Strategy = CtArgs::Strategy;

namespace {

Status read_ct_marlin_24(CtModule& m) {
  const CtArgs& args = m.weights;
  if (args.floating || !args.symmetric || (args.strategy != Strategy::kGroup && args.strategy != Strategy::kChannel)) {
    return m.parts.contradiction("weight_packed", "symmetric integers per group or channel in marlin-24", "others");
  }
  if (m.parts.has("weight_shape")) {
    TARE_TRY(m.parts.take_shaped("weight_shape", {DType::kI64, DType::kI32}, {{2}}));
  }
  return read_sparse24(m.parts, "weight_packed", "meta", "scale_packed", args.bits,
                       args.strategy == Strategy::kChannel ? -1 : args.group_size, m.out);
}

struct StorageRow {
  std::string_view format;
  Status (*read)(CtModule& module);
};
constexpr std::array<StorageRow, 8> kStorage = {{
    {"pack-quantized", read_ct_packed},
    {"int-quantized", read_ct_plain},
    {"float-quantized", read_ct_plain},
    {"naive-quantized", read_ct_plain},
    {"mxfp8-quantized", read_ct_plain},
    {"nvfp4-pack-quantized", read_ct_fp4},
    {"mxfp4-pack-quantized", read_ct_fp4},
    {"marlin-24", read_ct_marlin_24},
}};

Result<ActivationSpec> read_activation(const CtGroup& group, Parts& parts) {
  ActivationSpec out;
  if (!group.input_activations) return out;
  const CtArgs& args = *group.input_activations;
  const auto refuse = [&](std::string_view what) {
    return unsupported(fmt::format("input activations with {}", what), {.where = parts.module()});
  };
  if (args.floating) {
    if (args.bits != 8 && args.bits != 4) return refuse(fmt::format("{} bits of float", args.bits));
    out.type = args.bits == 8 ? ActivationType::kE4M3 : ActivationType::kE2M1;
    if (!args.symmetric) return refuse("a zero point on floats");
  } else {
    if (args.bits != 8 && args.bits != 4) return refuse(fmt::format("{} bits", args.bits));
    out.type = args.bits == 4 ? ActivationType::kS4 : ActivationType::kS8;
    out.symmetric = args.symmetric;
    if (args.bits == 4 && !args.symmetric) return refuse("an asymmetric 4-bit form");
  }
  out.dynamic = args.dynamic != CtArgs::Dynamic::kStatic;
  switch (args.strategy) {
    case Strategy::kTensor:
      out.granularity = ActivationGranularity::kTensor;
      break;
    case Strategy::kToken:
      out.granularity = ActivationGranularity::kToken;
      break;
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
      out.granularity = ActivationGranularity::kTokenGroup;
      out.group_size = args.group_size;
      break;
    default:
      return refuse("this strategy");
  }
  if (args.strategy == Strategy::kTensorGroup) {
    // Group scales are computed at run time under one stored scale for the whole tensor.
    TARE_ASSIGN(const float global, parts.take_scalar("input_global_scale", {DType::kF32}));
    if (!(global > 0)) {
      return make_error(ErrorKind::kNotFinite, "bad activation scale",
                        {.where = parts.name("input_global_scale"), .found = fmt::format("{}", global)});
    }
    out.scale = 1.0f / global;  // the file's number divides
    return out;
  }
  if (out.dynamic) return out;
  if (args.strategy != Strategy::kTensor) return refuse("static scales that are not per tensor");
  TARE_ASSIGN(out.scale, parts.take_scalar("input_scale", kFloats));
  if (!(out.scale > 0)) {
    return make_error(ErrorKind::kNotFinite, "bad activation scale",
                      {.where = parts.name("input_scale"), .found = fmt::format("{}", out.scale)});
  }
  if (!args.symmetric) {
    TARE_ASSIGN(const float zero, parts.take_scalar("input_zero_point", {DType::kI8}));
    out.zero = static_cast<int32_t>(zero);
  }
  return out;
}

void read_kv_scheme(const CtConfig& config, tensor::ModelWeights& out, std::vector<std::string>& notes) {
  if (!config.kv_cache) return;
  const CtArgs& args = *config.kv_cache;
  const std::string name = args.floating ? (args.bits == 8 ? "fp8_e4m3" : "fp4") : fmt::format("int{}", args.bits);
  out.kv.k_dtype = out.kv.v_dtype = name;
  notes.push_back(fmt::format("the checkpoint was made for a {} KV cache", name));
}

// Modules that hold any tensor only a quantized or sparse weight has.
std::set<std::string> candidates(const StoredTensors& tensors) {
  std::set<std::string> out;
  for (const std::string_view suffix : {"weight_packed", "weight_scale", "weight_zero_point", "weight_global_scale",
                                        "weight_g_idx", "weight_shape", "compressed", "scale_packed"}) {
    for (std::string& module : modules_with(tensors, suffix)) {
      if (tensors.contains(module + ".row_offsets")) continue;  // parts of P.weight: a plain bitmask, read by itself
      out.insert(std::move(module));
    }
  }
  return out;
}

// A module that the configuration quantizes must not be dense. Which modules are of class Linear is not in the file:
// only names that can be nothing else are held against the class.
bool surely_linear(std::string_view module) {
  const std::string_view part = last_part(module);
  return part.ends_with("_proj") || part == "lm_head" || part == "w1" || part == "w2" || part == "w3";
}

Status check_dense_modules(const Source& source, const CtConfig& config) {
  for (const std::string& name : source.tensors.remaining()) {
    if (last_part(name) != "weight") continue;
    const std::string module(parent_module(name));
    bool named = false;
    const CtGroup* group = config.group_of(module, &named);
    if (!group || !group->weights || source.tensors.find(name)->rank() != 2) continue;
    if (!named && !surely_linear(module)) continue;
    return invalid_input("configuration and weights contradict each other",
                         {.where = name,
                          .expected = fmt::format("quantized, as {} of {} says", group->name, config.where),
                          .found = fmt::format("dense {}", dtype_name(source.tensors.find(name)->dtype))});
  }
  return {};
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  if (method) {
    return *method == json::value("compressed-tensors") || *method == json::value("compressed_tensors") ? Match::kYes
                                                                                                        : Match::kNo;
  }
  return source.quantization.contains("config_groups") || source.quantization.contains("sparsity_config") ? Match::kYes
                                                                                                          : Match::kNo;
}

// Older exports nest the object one level down.
const json::object& unnest(const json::object& quantization) {
  const json::value* inner = json::find(quantization, "quantization_config");
  return inner && inner->is_object() ? inner->get_object() : quantization;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const CtConfig config, CtConfig::parse(unnest(source.quantization), source.quantization_where));
  if (config.has_transforms) {
    return unsupported("transform_config: transforms at run time",
                       {.where = config.where, .hint = "export the model with its transforms folded into the weights"});
  }
  read_kv_scheme(config, out, source.notes);
  bool quantizes = false;
  for (const CtGroup& group : config.groups) quantizes = quantizes || group.weights.has_value();
  const std::set<std::string> modules = candidates(source.tensors);
  if (quantizes && modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = config.where, .expected = "quantized tensors", .found = "none"});
  }
  for (const std::string& name : modules_with(source.tensors, "weight.bitmask")) {
    Parts parts(source, name);
    if (config.sparsity_format != "sparse-bitmask") {
      return parts.contradiction("weight.bitmask", "whole weights, since sparsity_config names no bitmask", "a mask");
    }
    if (const CtGroup* group = config.group_of(name); group && group->weights) {
      return unsupported("sparse-bitmask over quantized codes", {.where = parts.name("weight.bitmask")});
    }
    TARE_TRY(read_bitmask_dense(parts, out));
  }
  for (const std::string& name : modules) {
    Parts parts(source, name);
    const CtGroup* group = config.group_of(name);
    if (!group || !group->weights) {
      if (!config.sparsity_format.empty() && parts.has("compressed")) {
        TARE_TRY(read_sparse_dense(parts, out));
        continue;
      }
      return invalid_input(
          "configuration and weights contradict each other",
          {.where = name,
           .expected = config.ignored(name) ? "dense, as `ignore` says" : "dense, as no group names it",
           .found = "tensors of a quantized weight"});
    }
    const auto row = std::find_if(kStorage.begin(), kStorage.end(),
                                  [&](const StorageRow& known) { return known.format == group->format; });
    if (row == kStorage.end()) {
      return unsupported("compressed-tensors format that tare does not read",
                         {.where = config.where, .found = group->format});
    }
    TARE_ASSIGN(const ActivationSpec activation, read_activation(*group, parts));
    CtModule module{.source = source,
                    .config = config,
                    .weights = *group->weights,
                    .format = group->format,
                    .activation = activation,
                    .parts = Parts(source, name),
                    .out = out};
    TARE_TRY(row->read(module));
  }
  TARE_TRY(check_dense_modules(source, config));
  return take_dense_rest(source, out);
}

}  // namespace

Result<CtScaleShape> ct_scale_shape(const CtArgs& args, int64_t n, int64_t k, const Parts& parts) {
  switch (args.strategy) {
    case Strategy::kTensor:
      return CtScaleShape{{1}, n, k};
    case Strategy::kChannel:
      return CtScaleShape{{n, 1}, 1, k};
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
      return CtScaleShape{{n, ceil_div(k, args.group_size)}, 1, args.group_size};
    case Strategy::kBlock:
      return CtScaleShape{
          {ceil_div(n, args.block_rows), ceil_div(k, args.block_columns)}, args.block_rows, args.block_columns};
    default:
      return unsupported("strategy that weights do not have", {.where = parts.module()});
  }
}

CheckpointFormat compressed_tensors_format() {
  return {
      .name = "compressed-tensors",
      .aliases = {"compressed_tensors", "ct"},
      .min_capability = 70,
      .activation_dtypes = {"float16", "bfloat16"},
      .reads = "pack-, int-, float-, naive-quantized, nvfp4, mxfp4, mxfp8, mixed groups, 2:4 and plain bitmasks",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
