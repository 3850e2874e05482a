#include "checkpoints/marlin.h"

#include <fmt/format.h>

#include "checkpoints/gptq_config.h"
#include "checkpoints/marlin_layout.h"
#include "checkpoints/sparse24.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::Tensor;

namespace {

bool layout_is(const Source& source, std::string_view layout, std::string_view flag) {
  const json::value* method = json::find(source.quantization, "quant_method");
  if (!method || !method->is_string()) return false;
  const std::string_view name = method->get_string();
  if (name == layout) return true;
  if (name != "gptq") return false;
  const json::value* format = json::find(source.quantization, "checkpoint_format");
  const json::value* set = flag.empty() ? nullptr : json::find(source.quantization, flag);
  return (format && *format == json::value(layout)) || (set && *set == json::value(true));
}

struct MarlinConfig {
  int64_t bits = 4;
  int64_t group_size = 128;
};

Result<MarlinConfig> parse(const Source& source) {
  const json::object& q = source.quantization;
  const std::string& where = source.quantization_where;
  MarlinConfig out;
  TARE_ASSIGN(out.bits, json::get_int_or(q, "bits", 4, where));
  TARE_ASSIGN(out.group_size, json::get_int(q, "group_size", where));
  TARE_ASSIGN(const bool symmetric, json::get_bool_or(q, "sym", true, where));
  TARE_ASSIGN(const bool desc_act, json::get_bool_or(q, "desc_act", false, where));
  if (!symmetric || desc_act || (out.group_size != -1 && out.group_size < 1)) {
    return invalid_input("configuration contradicts its layout",
                         {.where = where, .expected = "sym true, desc_act false, group_size -1 or above 0"});
  }
  return out;
}

Status read_dense_marlin(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const MarlinConfig config, parse(source));
  TARE_TRY(check_side_file(source, "quantize_config.json"));
  if (config.bits != 4) {
    return unsupported("Marlin of this width",
                       {.where = source.quantization_where, .expected = "4", .found = fmt::format("{}", config.bits)});
  }
  const std::vector<std::string> modules = modules_with(source.tensors, "B");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "Marlin tensors (B)", .found = "none"});
  }
  for (const std::string& module : modules) {
    Parts parts(source, module);
    TARE_TRY(read_marlin(parts, "B", "s", config.group_size, "marlin", out));
  }
  return take_dense_rest(source, out);
}

Status read_sparse_marlin(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const MarlinConfig config, parse(source));
  TARE_TRY(check_side_file(source, "quantize_config.json"));
  const std::vector<std::string> modules = modules_with(source.tensors, "B_24");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "Marlin tensors (B_24)", .found = "none"});
  }
  for (const std::string& module : modules) {
    Parts parts(source, module);
    TARE_TRY(read_sparse24(parts, "B_24", "B_meta", "s", static_cast<int>(config.bits), config.group_size, out));
  }
  return take_dense_rest(source, out);
}

}  // namespace

Status read_marlin(Parts& parts, std::string_view codes_name, std::string_view scales_name, int64_t group_size,
                   std::string_view format, tensor::ModelWeights& out) {
  TARE_ASSIGN(const tensor::Shape packed, parts.shape(codes_name, 2));
  const int64_t k = packed[0] * 16;
  const int64_t n = packed[1] / 2;
  const int64_t group = group_size == -1 ? k : std::min(group_size, k);
  if (k == 0 || n == 0 || packed[1] % 2 != 0 || n % 64 != 0 || group < 1 || k % group != 0) {
    return parts.contradiction(codes_name, fmt::format("[K/16, 2N], N in runs of 64, K in groups of {}", group_size),
                               tensor::shape_text(packed));
  }
  const int64_t groups = k / group;
  TARE_ASSIGN(const Tensor codes, parts.take(codes_name, {DType::kI32}, packed));
  TARE_ASSIGN(const Tensor scales, parts.take(scales_name, kHalfFloats, {groups, n}));
  const int64_t bytes = parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = 4, .group_size = group};
  spec.zero = tensor::ZeroKind::kConstant;
  spec.zero_constant = 8;
  const std::string origin(format);
  return add_quantized(out, parts.name("weight"), {n, k}, spec, {}, bytes, [=]() -> Result<tensor::QuantizedTensor> {
    tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kUint, .bits = 4};
    f.codes = untile_nibbles(codes.data, n, k, TileOrder::kMarlin);
    f.z = 8.0f;
    TARE_ASSIGN(f.a, Grid::make(grid_type(scales.dtype), n, k, 1, group,
                                unpermute_scales(scales.data, groups, n, 2, groups == 1)));
    f.origin = {.format = origin, .bytes = bytes};
    return tensor::QuantizedTensor::make(std::move(f));
  });
}

CheckpointFormat marlin_format() {
  return {
      .name = "marlin",
      .config_files = {"quantize_config.json"},
      .min_capability = 80,
      .activation_dtypes = {"float16"},
      .reads = "4-bit symmetric weights in Marlin's tile order",
      .stands_for = {"gptq"},
      .accepts = [](const Source& source) -> Status {
        return unsupported("marlin names a layout that this gptq checkpoint does not have",
                           {.where = source.quantization_where, .hint = "leave the name out, or say gptq_marlin"});
      },
      .detect = [](const Source& s) { return layout_is(s, "marlin", "is_marlin_format") ? Match::kYes : Match::kNo; },
      .read = read_dense_marlin,
  };
}

CheckpointFormat gptq_marlin_24_format() {
  return {
      .name = "gptq_marlin_24",
      .config_files = {"quantize_config.json"},
      .min_capability = 80,
      .activation_dtypes = {"float16"},
      .reads = "4 and 8 bit, 2:4 sparse, in Marlin's tile order",
      .stands_for = {"gptq"},
      .accepts = [](const Source& source) -> Status {
        return unsupported("gptq_marlin_24 names a layout that this gptq checkpoint does not have",
                           {.where = source.quantization_where});
      },
      .detect = [](const Source& s) { return layout_is(s, "marlin_24", "") ? Match::kYes : Match::kNo; },
      .read = read_sparse_marlin,
  };
}

}  // namespace tare::checkpoints
