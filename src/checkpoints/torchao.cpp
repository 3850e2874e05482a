#include "checkpoints/torchao.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

// What the header's text says of one logical tensor.
struct Described {
  std::string type;  // "Tensor", "Int8Tensor", ...
  json::object data;
  std::vector<std::string> parts;  // "qdata", "scale", "zero_point"
};

Result<Described> describe(const std::string& text, const std::string& where) {
  TARE_ASSIGN(const json::value parsed, json::parse(text, where, {.max_bytes = 1 << 20, .max_depth = 32}));
  const json::object* o = parsed.if_object();
  if (!o) return invalid_input("description of a tensor is no object", {.where = where});
  Described out;
  TARE_ASSIGN(out.type, json::get_string(*o, "_type", where));
  if (const json::value* data = json::find(*o, "_data"); data && data->is_object()) out.data = data->get_object();
  TARE_ASSIGN(out.parts, string_list(*o, "_tensor_data_names", where));
  return out;
}

struct Int8Weight {
  int64_t n = 0, k = 0, tile_n = 1, tile_k = 1;
  bool fp8 = false;
  Tensor codes, scale;
  std::optional<Tensor> zero;
  int64_t bytes = 0;
  std::string name;
};

Result<tensor::QuantizedTensor> build(const Int8Weight& w) {
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .bits = 8};
  f.kind = w.fp8 ? tensor::CodeKind::kE4M3 : tensor::CodeKind::kInt;
  if (w.fp8) TARE_TRY(check_e4m3(w.codes.data, w.name));
  f.codes = w.codes.data;
  TARE_ASSIGN(f.a, Grid::make(grid_type(w.scale.dtype), w.n, w.k, w.tile_n, w.tile_k, w.scale.data));
  if (w.zero) {
    const auto bytes = w.zero->data.bytes();
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
      TARE_ASSIGN(Grid z, Grid::make(GridType::kS8, w.n, w.k, w.tile_n, w.tile_k, w.zero->data));
      f.z = std::move(z);
    }
  }
  f.origin = {.format = "torchao", .bytes = w.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

// Activation settings of the tensor ("act_quant_kwargs"): none, or dynamic per row.
Result<tensor::ActivationSpec> activation_of(const Described& described, bool fp8, const std::string& where) {
  tensor::ActivationSpec out;
  const json::value* kwargs = json::find(described.data, "act_quant_kwargs");
  if (!kwargs) return out;
  const json::object* o = kwargs->if_object();
  const json::value* data = o ? json::find(*o, "_data") : nullptr;
  if (!data || !data->is_object()) return unsupported("torchao activation settings", {.where = where});
  const std::string text = boost::json::serialize(*data);
  if (text.find("PerRow") == text.npos) {
    return unsupported("torchao activations that are not scaled per row",
                       {.where = where, .found = text.substr(0, 200)});
  }
  out.type = fp8 ? tensor::ActivationType::kE4M3 : tensor::ActivationType::kS8;
  return out;
}

Status read_quantized(Source& source, const std::string& logical, const Described& described,
                      tensor::ModelWeights& out) {
  const std::string module(parent_module(logical));
  Parts parts(source, module);
  const std::string prefix = fmt::format("_{}_", last_part(logical));
  Int8Weight w{.name = logical};
  w.fp8 = described.type == "Float8Tensor";
  if (!w.fp8 && described.type != "Int8Tensor" && described.type != "IntxUnpackedToInt8Tensor") {
    return unsupported("torchao tensor type", {.where = logical,
                                               .expected = "Int8Tensor, IntxUnpackedToInt8Tensor or Float8Tensor",
                                               .found = described.type});
  }
  TARE_ASSIGN(const tensor::Shape shape, parts.shape(prefix + "qdata", 2));
  w.n = shape[0];
  w.k = shape[1];
  TARE_ASSIGN(w.codes, parts.take(prefix + "qdata", {w.fp8 ? DType::kF8E4M3 : DType::kI8}, shape));
  TARE_ASSIGN(const tensor::Shape grid, parts.shape(prefix + "scale", 2));
  const json::value* block = json::find(described.data, "block_size");
  const json::array* list = block ? block->if_array() : nullptr;
  const auto rows = list && list->size() == 2 ? json::as_int((*list)[0]) : std::nullopt;
  const auto columns = list && list->size() == 2 ? json::as_int((*list)[1]) : std::nullopt;
  if (!rows || !columns || *rows < 1 || *columns < 1 || w.n < 1 || w.k < 1) {
    return invalid_input("bad block_size of a torchao tensor", {.where = logical, .expected = "[rows, columns]"});
  }
  w.tile_n = *rows;
  w.tile_k = *columns;
  const tensor::Shape expected{ceil_div(w.n, w.tile_n), ceil_div(w.k, w.tile_k)};
  if (grid != expected) {
    return parts.contradiction(prefix + "scale", "block_size " + tensor::shape_text({w.tile_n, w.tile_k}),
                               tensor::shape_text(grid));
  }
  TARE_ASSIGN(w.scale, parts.take(prefix + "scale", kFloats, expected));
  bool zero_named = false;
  for (const std::string& part : described.parts) {
    zero_named = zero_named || part == "zero_point";
    if (part != "qdata" && part != "scale" && part != "zero_point") {
      return unsupported("part of a torchao tensor", {.where = logical, .found = part});
    }
  }
  tensor::QuantSpec spec{.bits = 8};
  if (zero_named) {
    TARE_ASSIGN(w.zero, parts.take(prefix + "zero_point", {DType::kI8}, expected));
    // A symmetric file holds zeros; a header cannot tell, so the few numbers are looked at.
    const auto bytes = w.zero->data.bytes();
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
      spec.zero = tensor::ZeroKind::kInteger;
    }
  }
  TARE_ASSIGN(const tensor::ActivationSpec activation, activation_of(described, w.fp8, logical));
  w.bytes = parts.bytes();
  spec.kind = w.fp8 ? tensor::CodeKind::kE4M3 : tensor::CodeKind::kInt;
  spec.group_n = std::min(w.tile_n, w.n);
  spec.group_size = std::min(w.tile_k, w.k);
  const int64_t bytes = w.bytes;
  return add_quantized(out, logical, shape, spec, activation, bytes, [w = std::move(w)] { return build(w); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("torchao") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  const auto names = source.metadata.find("tensor_names");
  if (names == source.metadata.end()) {
    return unsupported("torchao checkpoint without a description of its tensors",
                       {.where = source.path,
                        .expected = "tensor_names in the safetensors header",
                        .hint = "save it again with torchao 0.14 or later"});
  }
  TARE_ASSIGN(const json::value parsed, json::parse(names->second, source.path + ": tensor_names"));
  if (!parsed.is_array()) return invalid_input("tensor_names is no list", {.where = source.path});
  for (const json::value& entry : parsed.get_array()) {
    if (!entry.is_string())
      return invalid_input("tensor_names holds something else than names", {.where = source.path});
    const std::string logical(entry.get_string());
    const auto text = source.metadata.find(logical);
    if (text == source.metadata.end()) {
      return invalid_input("tensor without a description", {.where = source.path + ": " + logical});
    }
    TARE_ASSIGN(const Described described, describe(text->second, source.path + ": " + logical));
    if (described.type == "Tensor") {
      if (!source.tensors.contains(logical)) return invalid_input("tensor is missing", {.where = logical});
      continue;
    }
    TARE_TRY(read_quantized(source, logical, described, out));
  }
  for (const std::string& name : source.tensors.remaining()) {
    if (source.metadata.count(name) == 0) {
      return invalid_input("tensor without a description", {.where = source.tensors.file_of(name) + ": " + name});
    }
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat torchao_format() {
  return {
      .name = "torchao",
      .config_files = {"config.json"},
      .min_capability = 75,
      .activation_dtypes = {"bfloat16", "float16", "float32"},
      .reads = "safetensors form: int8 and fp8 weights per row, group or block",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
