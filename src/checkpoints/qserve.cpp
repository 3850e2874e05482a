#include "checkpoints/qserve.h"

#include <fmt/format.h>

#include "checkpoints/parts.h"
#include "checkpoints/qserve_layout.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

uint8_t code_at(const Buffer& data, int64_t n, int64_t k, int64_t columns) {
  return (static_cast<uint8_t>(data.data()[qserve_byte(n, k, columns)]) >> qserve_shift(n)) & 15;
}

struct QServe {
  std::string module;
  int64_t n = 0, k = 0, group = 0;  // group 0: per channel
  Tensor codes, s1, szeros, s2, zeros;
  int64_t bytes = 0;
};

Result<tensor::QuantizedTensor> build(const QServe& w) {
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .kind = tensor::CodeKind::kUint, .bits = 4};
  std::vector<uint8_t> codes(static_cast<size_t>(w.n * w.k / 2));
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t k = 0; k < w.k; ++k) {
      codes[static_cast<size_t>((n * w.k + k) / 2)] |=
          static_cast<uint8_t>(code_at(w.codes.data, n, k, w.k) << 4 * (k % 2));
    }
  }
  f.codes = Buffer::own(std::move(codes));
  f.origin = {.format = "qserve", .bytes = w.bytes};
  if (w.group == 0) {
    // w = q * s1 - szero
    TARE_ASSIGN(f.a, Grid::make(GridType::kF16, w.n, w.k, 1, w.k, w.s1.data));
    std::vector<uint16_t> minima(static_cast<size_t>(w.n));
    __builtin_memcpy(minima.data(), w.szeros.data.data(), minima.size() * 2);
    for (uint16_t& m : minima) m ^= 0x8000;
    TARE_ASSIGN(f.b, Grid::make(GridType::kF16, w.n, w.k, 1, w.k, Buffer::own(std::move(minima))));
    return tensor::QuantizedTensor::make(std::move(f));
  }
  const int64_t groups = w.k / w.group;
  std::vector<uint8_t> scale(static_cast<size_t>(w.n * groups));
  std::vector<int8_t> minimum(scale.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t p = 0; p < w.n; ++p) {
      const auto at = static_cast<size_t>(qserve_channel(p) * groups + g);
      const auto s2 = static_cast<int8_t>(w.s2.data.data()[g * w.n + p]);
      minimum[at] = static_cast<int8_t>(w.zeros.data.data()[g * w.n + p]);
      // The kernel keeps q * s2 + zero in a byte: a group that leaves it would wrap there.
      if (s2 < 0 || minimum[at] + 15 * s2 > 127) {
        return invalid_input(
            "second-level scale leaves int8",
            {.where = fmt::format("{}.s2_scales, group {}, channel {}", w.module, g, qserve_channel(p)),
             .expected = "scale >= 0 and 15 * scale + zero <= 127",
             .found = fmt::format("{} and {}", s2, minimum[at])});
      }
      scale[at] = static_cast<uint8_t>(s2);
    }
  }
  f.rule = tensor::Rule::kIntegerFirst;
  TARE_ASSIGN(f.a, Grid::make(GridType::kU8, w.n, w.k, 1, w.group, Buffer::own(std::move(scale))));
  TARE_ASSIGN(f.b, Grid::make(GridType::kS8, w.n, w.k, 1, w.group, Buffer::own(std::move(minimum))));
  TARE_ASSIGN(f.A, Grid::make(GridType::kF16, w.n, w.k, 1, w.k, w.s1.data));
  return tensor::QuantizedTensor::make(std::move(f));
}

Status read_module(Source& source, const std::string& module, tensor::ModelWeights& out) {
  Parts parts(source, module);
  QServe w{.module = module};
  TARE_ASSIGN(const tensor::Shape packed, parts.shape("qweight", 2));
  w.n = packed[0];
  w.k = packed[1] * 2;
  if (w.n % 32 != 0 || w.k % 32 != 0 || w.n == 0 || w.k == 0) {
    return parts.contradiction("qweight", "[N, K/2], both in runs of 32", tensor::shape_text(packed));
  }
  TARE_ASSIGN(w.codes, parts.take("qweight", {DType::kI8, DType::kU8}, packed));
  TARE_ASSIGN(w.s1, parts.take("s1_scales", {DType::kF16}, {w.n}));
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = 4, .has_min = true};
  if (parts.has("s1_szeros")) {
    TARE_ASSIGN(w.szeros, parts.take("s1_szeros", {DType::kF16}, {w.n}));
    TARE_TRY(check_finite(w.szeros, parts.name("s1_szeros")));
    spec.group_size = w.k;
  } else {
    TARE_ASSIGN(const tensor::Shape second, parts.shape("s2_scales", 2));
    if (second[0] < 1 || w.k % second[0] != 0 || second[1] != w.n) {
      return parts.contradiction("s2_scales", fmt::format("[G, {}], G a divisor of {}", w.n, w.k),
                                 tensor::shape_text(second));
    }
    w.group = w.k / second[0];
    TARE_ASSIGN(w.s2, parts.take("s2_scales", {DType::kI8}, second));
    TARE_ASSIGN(w.zeros, parts.take("s2_zeros", {DType::kI8}, second));
    spec.rule = tensor::Rule::kIntegerFirst;
    spec.group_size = w.group;
    spec.has_outer_scale = true;
    spec.outer_group_n = 1;
    spec.outer_group_size = w.k;
  }
  w.bytes = parts.bytes();
  const tensor::Shape shape{w.n, w.k};
  const int64_t bytes = w.bytes;
  return add_quantized(out, parts.name("weight"), shape, spec, {.type = tensor::ActivationType::kS8}, bytes,
                       [w = std::move(w)] { return build(w); });
}

Status read_w8a8(Source& source, const std::string& module, tensor::ModelWeights& out) {
  Parts parts(source, module);
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("weight", 2));
  const int64_t n = shape[0], k = shape[1];
  TARE_ASSIGN(const Tensor codes, parts.take("weight", {DType::kI8}, shape));
  TARE_ASSIGN(const Tensor scale, parts.take("dequant_scale", {DType::kF16}, {n}));
  const int64_t bytes = parts.bytes();
  const tensor::QuantSpec spec{.kind = tensor::CodeKind::kInt, .bits = 8, .group_size = k};
  return add_quantized(out, parts.name("weight"), shape, spec, {.type = tensor::ActivationType::kS8}, bytes,
                       [=]() -> Result<tensor::QuantizedTensor> {
                         tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kInt, .bits = 8};
                         f.codes = codes.data;
                         TARE_ASSIGN(f.a, Grid::make(GridType::kF16, n, k, 1, k, scale.data));
                         f.origin = {.format = "qserve", .bytes = bytes};
                         return tensor::QuantizedTensor::make(std::move(f));
                       });
}

// kv_scale_quant_orig [2]: K and V of an int8 cache with one scale each.
Status take_kv(Source& source, tensor::ModelWeights& out) {
  constexpr std::string_view kName = "kv_scale_quant_orig";
  for (const std::string& module : modules_with(source.tensors, kName)) {
    Parts parts(source, module);
    TARE_ASSIGN(const Tensor both, parts.take(kName, {DType::kF32}, {2}));
    TARE_TRY(check_finite(both, parts.name(kName)));
    TARE_TRY(add_dense(out, parts.name("k_scale"), Tensor{DType::kF32, {1}, both.data.slice(0, 4)}));
    TARE_TRY(add_dense(out, parts.name("v_scale"), Tensor{DType::kF32, {1}, both.data.slice(4, 4)}));
    out.kv = {"int8", "int8"};
  }
  return {};
}

Match detect(const Source& source) {
  if (source.has_quantization() || !source.gguf.empty()) return Match::kNo;
  const bool mine =
      !modules_with(source.tensors, "s1_scales").empty() || !modules_with(source.tensors, "dequant_scale").empty();
  return mine ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  for (const std::string& module : modules_with(source.tensors, "s1_scales")) {
    TARE_TRY(read_module(source, module, out));
  }
  for (const std::string& module : modules_with(source.tensors, "dequant_scale")) {
    TARE_TRY(read_w8a8(source, module, out));
  }
  TARE_TRY(take_kv(source, out));
  source.notes.push_back("QServe: second-level scales are read in the order of omniserve's kernel");
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat qserve_format() {
  return {
      .name = "qserve",
      .aliases = {"omniserve"},
      .activation_dtypes = {"float16"},
      .reads = "W4A8 per channel and per group (both zero conventions), W8A8; safetensors only",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
