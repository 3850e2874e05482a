#include "checkpoints/aqlm.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/parts.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::Tensor;

namespace {

struct AqlmConfig {
  int64_t in_group = 8, out_group = 1, codebooks = 1, bits = 16;
  std::vector<std::string> dense;  // full names of weights
};

struct Aqlm {
  AqlmConfig config;
  int64_t n = 0, k = 0;
  Tensor codes, codebooks, scales;
  int64_t bytes = 0;
  std::string name;
};

// Stored codes are whole bytes, signed; the code is the value mod 2^bits.
Buffer narrow_codes(const Aqlm& w) {
  const int64_t width = tensor::dtype_bits(w.codes.dtype);
  const int bits = static_cast<int>(w.config.bits);
  if (width == bits) return w.codes.data;
  const int64_t rows = w.codes.shape[0];
  const int64_t columns = w.codes.shape[1] * w.codes.shape[2];
  const int64_t stride = numerics::packed_bytes(columns, bits);
  std::vector<std::byte> out(static_cast<size_t>(rows * stride));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) {
      const uint32_t code =
          numerics::read_code(w.codes.data.data(), (row * columns + i) * width, static_cast<int>(width));
      numerics::write_code(out.data() + row * stride, i * bits, bits, code & ((1u << bits) - 1));
    }
  }
  return Buffer::own(std::move(out));
}

Result<tensor::QuantizedTensor> build(const Aqlm& w) {
  TARE_TRY(check_finite(w.codebooks, w.name));
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .kind = tensor::CodeKind::kVq, .bits = static_cast<int>(w.config.bits)};
  f.codes = narrow_codes(w);
  f.vq = tensor::VectorCodebooks{.count = w.config.codebooks,
                                 .out_group = w.config.out_group,
                                 .in_group = w.config.in_group,
                                 .books = w.codebooks.data};
  TARE_ASSIGN(f.a, Grid::make(grid_type(w.scales.dtype), w.n, w.k, w.config.out_group, w.k, w.scales.data));
  f.origin = {.format = "aqlm", .bytes = w.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

Status read_module(Source& source, const AqlmConfig& config, const std::string& module, tensor::ModelWeights& out) {
  Parts parts(source, module);
  Aqlm w{.config = config, .name = parts.name("weight")};
  if (std::find(config.dense.begin(), config.dense.end(), w.name) != config.dense.end()) {
    return parts.contradiction("codes", "dense, as linear_weights_not_to_quantize says", "quantized codes");
  }
  TARE_ASSIGN(const tensor::Shape shape, parts.shape("codes", 3));
  w.n = shape[0] * config.out_group;
  w.k = shape[1] * config.in_group;
  const DType code_type = config.bits <= 8 ? DType::kI8 : DType::kI16;
  TARE_ASSIGN(w.codes, parts.take("codes", {code_type}, {shape[0], shape[1], config.codebooks}));
  TARE_ASSIGN(w.codebooks,
              parts.take("codebooks", {DType::kF16},
                         {config.codebooks, int64_t{1} << config.bits, config.out_group, config.in_group}));
  TARE_ASSIGN(w.scales, parts.take("scales", kHalfFloats, {shape[0], 1, 1, 1}));
  w.bytes = parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kVq, .bits = static_cast<int>(config.bits)};
  spec.group_n = std::min(config.out_group, w.n);
  spec.group_size = w.k;
  const tensor::Shape matrix{w.n, w.k};
  const int64_t bytes = w.bytes;
  return add_quantized(out, parts.name("weight"), matrix, spec, {}, bytes, [w = std::move(w)] { return build(w); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("aqlm") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  const json::object& q = source.quantization;
  const std::string& where = source.quantization_where;
  AqlmConfig config;
  TARE_ASSIGN(config.in_group, json::get_int_or(q, "in_group_size", 8, where));
  TARE_ASSIGN(config.out_group, json::get_int_or(q, "out_group_size", 1, where));
  TARE_ASSIGN(config.codebooks, json::get_int_or(q, "num_codebooks", 1, where));
  TARE_ASSIGN(config.bits, json::get_int_or(q, "nbits_per_codebook", 16, where));
  TARE_ASSIGN(config.dense, string_list(q, "linear_weights_not_to_quantize", where));
  if (config.in_group < 1 || config.in_group > 1024 || config.out_group < 1 || config.out_group > 1024 ||
      config.codebooks < 1 || config.codebooks > 64 || config.bits < 1 || config.bits > 16) {
    return invalid_input("bad codebook sizes", {.where = where});
  }
  const std::vector<std::string> modules = modules_with(source.tensors, "codes");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = where, .expected = "AQLM tensors (codes)", .found = "none"});
  }
  for (const std::string& module : modules) TARE_TRY(read_module(source, config, module, out));
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat aqlm_format() {
  return {
      .name = "aqlm",
      .min_capability = 60,
      .activation_dtypes = {"float16"},
      .reads = "any number of codebooks of up to 16 bits",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
