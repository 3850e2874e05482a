#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "checkpoints/compressed_tensors.h"
#include "checkpoints/write.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::ActivationSpec;
using tensor::ActivationType;
using tensor::CodeKind;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::Tensor;

namespace {

Error cannot_say(const std::string& module, std::string what) {
  return unsupported("compressed-tensors cannot hold this weight",
                     {.where = module + ".weight", .found = std::move(what), .hint = "use --format tare"});
}

Result<DType> scale_dtype(const Grid& grid, const std::string& module) {
  switch (grid.type) {
    case GridType::kF16:
      return DType::kF16;
    case GridType::kBF16:
      return DType::kBF16;
    case GridType::kF32:
      return DType::kF32;
    default:
      return cannot_say(module, fmt::format("scales of type {}", grid_type_name(grid.type)));
  }
}

// tensor, channel, group or block, from the tile of the scales.
struct Strategy {
  std::string name;
  int64_t group_size = 0;
  std::vector<int64_t> block;
};
Result<Strategy> strategy_of(const QuantizedFields& f, const std::string& module) {
  const Grid& a = *f.a;
  if (a.tile_n >= f.n && a.tile_k >= f.k) return Strategy{.name = f.n == 1 ? "channel" : "tensor"};
  if (a.tile_n == 1 && a.tile_k >= f.k) return Strategy{.name = "channel"};
  if (a.tile_n == 1) {
    if (f.k % a.tile_k != 0) {
      return cannot_say(module, fmt::format("groups of {} over {} inputs: the last one is short", a.tile_k, f.k));
    }
    return Strategy{.name = "group", .group_size = a.tile_k};
  }
  return Strategy{.name = "block", .block = {a.tile_n, a.tile_k}};
}

json::object arguments(int bits, bool floating, bool symmetric, const Strategy& strategy, json::value dynamic) {
  json::object out{{"num_bits", bits},
                   {"type", floating ? "float" : "int"},
                   {"symmetric", symmetric},
                   {"strategy", strategy.name},
                   {"group_size", nullptr},
                   {"block_structure", nullptr},
                   {"dynamic", std::move(dynamic)},
                   {"actorder", nullptr},
                   {"observer", nullptr},
                   {"observer_kwargs", json::object()}};
  if (strategy.group_size > 0) out["group_size"] = strategy.group_size;
  if (!strategy.block.empty()) out["block_structure"] = json::array(strategy.block.begin(), strategy.block.end());
  return out;
}

Result<json::value> activation_arguments(const ActivationSpec& spec, const std::string& module) {
  if (spec.type == ActivationType::kNone) return json::value(nullptr);
  const bool floating = spec.type == ActivationType::kE4M3;
  if (!floating && spec.type != ActivationType::kS8 && spec.type != ActivationType::kS4) {
    return cannot_say(module, "activations " + describe(spec));
  }
  if (spec.outlier_threshold > 0 || spec.cap > 0 || (!spec.dynamic && !spec.symmetric)) {
    return cannot_say(module, "activations " + describe(spec));
  }
  Strategy strategy;
  switch (spec.granularity) {
    case tensor::ActivationGranularity::kTensor:
      strategy.name = "tensor";
      break;
    case tensor::ActivationGranularity::kToken:
      strategy.name = "token";
      break;
    case tensor::ActivationGranularity::kTokenGroup:
      strategy = {.name = "group", .group_size = spec.group_size};
      break;
  }
  const int bits = spec.type == ActivationType::kS4 ? 4 : 8;
  return json::value(arguments(bits, floating, spec.symmetric, strategy, spec.dynamic));
}

// Signed logical code; the field counts from -2^(b-1).
int32_t logical_code(const QuantizedTensor& weight, int64_t row, int64_t column) {
  const QuantizedFields& f = weight.fields();
  const uint32_t code = weight.code(row, column);
  return f.kind == CodeKind::kInt ? numerics::sign_extend(code, f.bits)
                                  : static_cast<int32_t>(code) - (1 << (f.bits - 1));
}

// Zero points in the same signed units, [N * G]; empty when all are 0 by form.
Result<std::vector<int32_t>> logical_zeros(const QuantizedFields& f, int64_t groups, const std::string& module) {
  const int32_t offset = f.kind == CodeKind::kInt ? 0 : 1 << (f.bits - 1);
  std::vector<int32_t> out;
  if (const Grid* z = std::get_if<Grid>(&f.z)) {
    if (!tensor::is_integer(z->type)) return cannot_say(module, "zero points that are no integers");
    if (z->tile_n != f.a->tile_n || z->tile_k != f.a->tile_k) return cannot_say(module, "zeros on another grid");
    for (int64_t row = 0; row < f.n; ++row) {
      for (int64_t g = 0; g < groups; ++g) out.push_back(z->integer(row * z->stride + g) - offset);
    }
    const int32_t half = 1 << (f.bits - 1);
    const auto wide = std::find_if(out.begin(), out.end(), [&](int32_t v) { return v < -half || v >= half; });
    if (wide != out.end()) return cannot_say(module, fmt::format("zero point {} beyond the codes", *wide + offset));
    return out;
  }
  const float* constant = std::get_if<float>(&f.z);
  const float zero = constant ? *constant : 0.0f;
  if (zero == static_cast<float>(offset)) return out;
  return cannot_say(module, fmt::format("constant zero point {}", zero));
}

Result<StoredMatrix> store(const std::string& module, const QuantizedTensor& weight, const ActivationSpec& activation) {
  const QuantizedFields& f = weight.fields();
  const bool integer = f.kind == CodeKind::kUint || f.kind == CodeKind::kInt;
  if ((!integer && f.kind != CodeKind::kE4M3) || f.rule != tensor::Rule::kScaleFirst || f.b || f.A || !f.a ||
      f.group_of_k || f.a->origin_n != 0 || f.a->origin_k != 0) {
    return cannot_say(module, describe(weight.spec()));
  }
  TARE_ASSIGN(const Strategy strategy, strategy_of(f, module));
  TARE_ASSIGN(const json::value inputs, activation_arguments(activation, module));
  TARE_ASSIGN(const DType scales, scale_dtype(*f.a, module));
  const int64_t groups = ceil_div(f.k, f.a->tile_k);
  const int64_t scale_rows = ceil_div(f.n, f.a->tile_n);
  const bool per_tensor = strategy.name == "tensor";
  const bool packed = integer && activation.type == ActivationType::kNone;

  StoredMatrix out;
  const auto add = [&](std::string_view suffix, Result<Tensor> tensor) -> Status {
    if (!tensor.ok()) return std::move(tensor).error();
    out.parts.push_back({module + "." + std::string(suffix), std::move(tensor).value()});
    return {};
  };
  if (f.a->stride != groups) return cannot_say(module, "a view over columns");
  const size_t scale_bytes = static_cast<size_t>(scale_rows * groups * tensor::grid_element_bytes(f.a->type));
  const tensor::Shape scale_shape = per_tensor ? tensor::Shape{1} : tensor::Shape{scale_rows, groups};
  TARE_TRY(add("weight_scale", Tensor::make(scales, scale_shape, f.a->values.slice(0, scale_bytes))));

  std::vector<int32_t> zeros;
  if (integer) {
    TARE_ASSIGN(zeros, logical_zeros(f, groups, module));
    if (!zeros.empty() && per_tensor) return cannot_say(module, "a zero point per tensor");
  }
  if (packed) {
    const int half = 1 << (f.bits - 1);
    const int64_t words = ceil_div(f.k * f.bits, 32);
    std::vector<std::byte> codes(static_cast<size_t>(f.n * words * 4));
    for (int64_t row = 0; row < f.n; ++row) {
      for (int64_t i = 0; i < f.k; ++i) {
        numerics::write_code(codes.data() + row * words * 4, i * f.bits, f.bits,
                             static_cast<uint32_t>(logical_code(weight, row, i) + half));
      }
    }
    TARE_TRY(add("weight_packed", Tensor::make(DType::kI32, {f.n, words}, Buffer::own(std::move(codes)))));
    TARE_TRY(add("weight_shape", Tensor::make(DType::kI64, {2}, Buffer::own(std::vector<int64_t>{f.n, f.k}))));
    if (!zeros.empty()) {
      // One bit stream down the rows of each group; a word of it covers neighbouring rows.
      const int64_t zero_words = ceil_div(f.n * f.bits, 32);
      std::vector<std::byte> column(static_cast<size_t>(zero_words * 4));
      std::vector<std::byte> stored(static_cast<size_t>(zero_words * groups * 4));
      for (int64_t g = 0; g < groups; ++g) {
        std::fill(column.begin(), column.end(), std::byte{0});
        for (int64_t row = 0; row < f.n; ++row) {
          numerics::write_code(column.data(), row * f.bits, f.bits,
                               static_cast<uint32_t>(zeros[static_cast<size_t>(row * groups + g)] + half));
        }
        for (int64_t w = 0; w < zero_words; ++w) {
          std::memcpy(stored.data() + (w * groups + g) * 4, column.data() + w * 4, 4);
        }
      }
      TARE_TRY(
          add("weight_zero_point", Tensor::make(DType::kI32, {zero_words, groups}, Buffer::own(std::move(stored)))));
    }
  } else {
    std::vector<uint8_t> codes(static_cast<size_t>(f.n * f.k));
    for (int64_t row = 0; row < f.n; ++row) {
      for (int64_t i = 0; i < f.k; ++i) {
        codes[static_cast<size_t>(row * f.k + i)] =
            integer ? static_cast<uint8_t>(logical_code(weight, row, i)) : static_cast<uint8_t>(weight.code(row, i));
      }
    }
    const DType dtype = integer ? DType::kI8 : DType::kF8E4M3;
    TARE_TRY(add("weight", Tensor::make(dtype, {f.n, f.k}, Buffer::own(std::move(codes)))));
    if (!zeros.empty()) {
      std::vector<int8_t> narrow(zeros.begin(), zeros.end());
      TARE_TRY(add("weight_zero_point", Tensor::make(DType::kI8, scale_shape, Buffer::own(std::move(narrow)))));
    }
    if (activation.type != ActivationType::kNone && !activation.dynamic) {
      TARE_TRY(add("input_scale", Tensor::make(DType::kF32, {1}, Buffer::own(std::vector<float>{activation.scale}))));
    }
  }
  const std::string format = packed                                     ? "pack-quantized"
                             : integer                                  ? "int-quantized"
                             : activation.type != ActivationType::kNone ? "float-quantized"
                                                                        : "naive-quantized";
  out.scheme = {{"targets", json::array()},
                {"weights", arguments(f.bits, !integer, zeros.empty(), strategy, false)},
                {"input_activations", inputs},
                {"output_activations", nullptr},
                {"format", format}};
  return out;
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   const WriteRequest&) {
  std::vector<json::object> groups;
  std::vector<std::string> texts;
  for (const WrittenModule& module : modules) {
    const std::string text = boost::json::serialize(module.scheme);
    const auto at = static_cast<size_t>(std::find(texts.begin(), texts.end(), text) - texts.begin());
    if (at == texts.size()) {
      texts.push_back(text);
      groups.push_back(module.scheme);
    }
    groups[at]["targets"].as_array().emplace_back(module.module);
  }
  if (groups.size() == 1) groups[0]["targets"] = json::array{"Linear"};
  json::object config_groups;
  std::string format;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string own(groups[i]["format"].as_string());
    format = format.empty() || format == own ? own : "mixed-precision";
    config_groups[fmt::format("group_{}", i)] = std::move(groups[i]);
  }
  // The class Linear takes in every dense matrix that is one; the embedding table is none.
  json::array ignore;
  bool head = false;
  for (const WrittenModule& module : modules) head = head || module.module == "lm_head";
  for (const std::string& name : dense) {
    if (name.ends_with("embed_tokens") || name == "lm_head") continue;
    ignore.emplace_back(name);
  }
  if (!head) ignore.emplace_back("lm_head");
  return json::object{{"quant_method", "compressed-tensors"},
                      {"version", "0.12.2"},
                      {"format", format},
                      {"quantization_status", "compressed"},
                      {"global_compression_ratio", nullptr},
                      {"config_groups", std::move(config_groups)},
                      {"ignore", std::move(ignore)},
                      {"kv_cache_scheme", nullptr}};
}

}  // namespace

CheckpointWriter compressed_tensors_writer() {
  return {.name = "compressed-tensors",
          .writes = "pack-quantized (integer weights), int-quantized (with s8 activations), float-quantized (e4m3)",
          .store = store,
          .configuration = configuration};
}

}  // namespace tare::checkpoints
