#include "checkpoints/qqq.h"

#include <fmt/format.h>

#include "checkpoints/gptq_config.h"
#include "checkpoints/marlin_layout.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct Qqq {
  int64_t n = 0, k = 0;
  int64_t group = 0;  // 0: one scale a channel
  Tensor codes, channel_scale, group_scale;
  int64_t bytes = 0;
};

Result<tensor::QuantizedTensor> build(const Qqq& w) {
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .bits = 4, .rule = tensor::Rule::kIntegerFirst};
  f.codes = untile_nibbles(w.codes.data, w.n, w.k, w.group > 0 ? TileOrder::kQqqGroup : TileOrder::kQqqChannel);
  if (w.group > 0) {
    // w = s_channel * round(s_group * (u - 8)), the bracket an int8
    f.kind = tensor::CodeKind::kUint;
    f.z = 8.0f;
    f.round_inner = true;
    TARE_ASSIGN(f.a, Grid::make(GridType::kF16, w.n, w.k, 1, w.group,
                                unpermute_scales(w.group_scale.data, w.k / w.group, w.n, 2, false)));
  } else {
    // w = s_channel * (16 q): the kernel reads the nibble as the upper half of an int8
    f.kind = tensor::CodeKind::kInt;
    TARE_ASSIGN(f.a, Grid::make(GridType::kU8, w.n, w.k, w.n, w.k, Buffer::own(std::vector<uint8_t>{16})));
  }
  TARE_ASSIGN(f.A,
              Grid::make(GridType::kF32, w.n, w.k, 1, w.k, unpermute_scales(w.channel_scale.data, 1, w.n, 4, true)));
  f.origin = {.format = "qqq", .bytes = w.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

Status read_module(Source& source, int64_t group_size, const std::string& module, tensor::ModelWeights& out) {
  Parts parts(source, module);
  Qqq w;
  TARE_ASSIGN(const tensor::Shape packed, parts.shape("B", 2));
  w.k = packed[0] * 16;
  w.n = packed[1] / 2;
  w.group = group_size == -1 || group_size == w.k ? 0 : group_size;
  if (packed[1] % 2 != 0 || w.n % 64 != 0 || w.n == 0 || w.k == 0 || (w.group > 0 && w.k % w.group != 0)) {
    return parts.contradiction("B", fmt::format("[K/16, 2N], N in runs of 64, K in groups of {}", group_size),
                               tensor::shape_text(packed));
  }
  TARE_ASSIGN(w.codes, parts.take("B", {DType::kI32}, packed));
  TARE_ASSIGN(w.channel_scale, parts.take("s_channel", {DType::kF32}, {1, w.n}));
  if (w.group > 0) {
    TARE_ASSIGN(w.group_scale, parts.take("s_group", {DType::kF16}, {w.k / w.group, w.n}));
  } else if (parts.has("s_group")) {
    TARE_ASSIGN(const Tensor none, parts.take("s_group", {DType::kF16}, {0}));
  }
  w.bytes = parts.bytes();
  tensor::QuantSpec spec{.bits = 4, .rule = tensor::Rule::kIntegerFirst, .has_outer_scale = true};
  spec.outer_group_n = 1;
  spec.outer_group_size = w.k;
  if (w.group > 0) {
    spec.kind = tensor::CodeKind::kUint;
    spec.group_size = w.group;
    spec.zero = tensor::ZeroKind::kConstant;
    spec.zero_constant = 8;
    spec.round_inner = true;
  } else {
    spec.kind = tensor::CodeKind::kInt;
    spec.group_n = w.n;
    spec.group_size = w.k;
  }
  const tensor::ActivationSpec activation{.type = tensor::ActivationType::kS8};
  const tensor::Shape shape{w.n, w.k};
  const int64_t bytes = w.bytes;
  return add_quantized(out, parts.name("weight"), shape, spec, activation, bytes,
                       [w = std::move(w)] { return build(w); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("qqq") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  const json::object& q = source.quantization;
  const std::string& where = source.quantization_where;
  TARE_TRY(check_side_file(source, "quantize_config.json"));
  TARE_TRY(check_side_file(source, "quant_config.json"));
  for (const std::string_view key : {"wbits", "bits"}) {
    TARE_ASSIGN(const int64_t bits, json::get_int_or(q, key, 4, where));
    if (bits != 4)
      return unsupported("QQQ of this width", {.where = where, .expected = "4", .found = fmt::format("{}", bits)});
  }
  TARE_ASSIGN(const int64_t group, json::get_int(q, "group_size", where));
  if (group != -1 && group < 1)
    return invalid_input("bad 'group_size'", {.where = where, .found = fmt::format("{}", group)});
  const std::vector<std::string> modules = modules_with(source.tensors, "B");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = where, .expected = "QQQ tensors (B)", .found = "none"});
  }
  for (const std::string& module : modules) TARE_TRY(read_module(source, group, module, out));
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat qqq_format() {
  return {
      .name = "qqq",
      .config_files = {"quant_config.json", "quantize_config.json"},
      .min_capability = 80,
      .activation_dtypes = {"float16"},
      .reads = "4-bit weights, scales per group of 128 or per channel, int8 activations per token",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
