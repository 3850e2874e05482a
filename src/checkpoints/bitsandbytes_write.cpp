#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/checked.h"
#include "checkpoints/bitsandbytes.h"
#include "checkpoints/online.h"

namespace tare::checkpoints {

using tensor::CodeKind;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::Tensor;

namespace {

// The library's table of fp4 (docs/formats.md 5.3); files hold f32 of these quotients.
bool is_fp4(const std::vector<float>& lut) {
  constexpr std::array<float, 8> kMagnitudes = {0, 0.0625f, 8, 12, 4, 6, 2, 3};
  for (size_t i = 0; i < lut.size(); ++i) {
    const float wanted = kMagnitudes[i % 8] / 12.0f * (i < 8 ? 1.0f : -1.0f);
    if (std::abs(lut[i] - wanted) > 1e-6f) return false;
  }
  return lut.size() == 16;
}

std::string output_dtype(const json::object& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const json::value* value = json::find(config, key);
    if (value && value->is_string()) return std::string(value->get_string());
  }
  return "float32";
}

// Whether the numbers of a grid lie one after the other over the flattened matrix.
bool whole(const Grid& grid, const QuantizedFields& f) {
  return grid.origin_n == 0 && grid.origin_k == 0 && grid.stride == ceil_div(f.k, grid.tile_k);
}

Result<StoredMatrix> store_four_bit(const MatrixToStore& matrix, Losses& losses) {
  const QuantizedFields& f = matrix.weight->fields();
  const std::string where = matrix.name();
  TARE_TRY(lose_activation(matrix, losses));
  const bool nested = f.rule == tensor::Rule::kNested;
  const std::string type = std::equal(f.lut.begin(), f.lut.end(), nf4_values().begin(), nf4_values().end()) ? "nf4"
                           : is_fp4(f.lut)                                                                  ? "fp4"
                                                                                                            : "";
  if (f.kind != CodeKind::kLut || f.bits != 4 || type.empty()) {
    return losses.refuse(where, fmt::format("{}: no nf4 or fp4 codes", describe(matrix.weight->spec())));
  }
  const int64_t block = f.a ? f.a->tile_k : 0;
  const bool plain = !nested && !f.A && f.rule == tensor::Rule::kScaleFirst && f.a && f.a->type != GridType::kLut256;
  if (!f.a || (!nested && !plain) || f.b || f.group_of_k || !std::holds_alternative<std::monostate>(f.z) ||
      f.a->tile_n != 1 || block < 32 || block > 4096 || (block & (block - 1)) != 0 || f.k % block != 0 ||
      !whole(*f.a, f) || f.code_stride != f.k / 2 || f.code_bit_offset != 0) {
    const std::string form = describe(matrix.weight->spec());
    if (block > 0 && f.k % block != 0) {
      return losses.refuse(where, fmt::format("{} over {} columns: its blocks do not end with a row (a smaller group "
                                              "size may; tare takes any)",
                                              form, f.k));
    }
    return losses.refuse(where, form);
  }
  StoredMatrix out;
  std::vector<uint8_t> codes(static_cast<size_t>(f.n * f.k / 2));
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(f.codes.data()[i]);
    codes[i] = static_cast<uint8_t>(byte >> 4 | byte << 4);  // the first of two codes stands in the high nibble
  }
  TARE_TRY(out.add(matrix, "weight", Tensor::make(DType::kU8, {f.n * f.k / 2, 1}, Buffer::own(std::move(codes)))));
  TARE_TRY(out.add(matrix, "weight.quant_map", Tensor::make(DType::kF32, {16}, Buffer::own(f.lut))));
  const int64_t blocks = f.n * (f.k / block);
  std::string state = fmt::format(R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])", type,
                                  block, output_dtype(*matrix.config), f.n, f.k);
  if (nested) {
    const int64_t per_row = f.k / block;
    const int64_t share = f.A->tile_k >= f.k ? f.A->tile_n * per_row : f.A->tile_k / block;
    const int64_t outer = ceil_div(f.n, f.A->tile_n) * ceil_div(f.k, f.A->tile_k);
    if (!whole(*f.A, f) || f.A->type != GridType::kF32 || (f.A->tile_n > 1 && f.A->tile_k < f.k) ||
        outer != ceil_div(blocks, share)) {
      return losses.refuse(where, "outer scales over other blocks than runs of the matrix");
    }
    if ((share & (share - 1)) != 0) {
      return losses.refuse(where,
                           fmt::format("8-bit scales in runs of {} blocks, since rows of {} columns hold no power "
                                       "of two of them (take single scales, or tare)",
                                       share, f.k));
    }
    TARE_TRY(out.add(matrix, "weight.absmax",
                     Tensor::make(DType::kU8, {blocks}, f.a->values.slice(0, static_cast<size_t>(blocks)))));
    TARE_TRY(out.add(matrix, "weight.nested_absmax",
                     Tensor::make(DType::kF32, {outer}, f.A->values.slice(0, static_cast<size_t>(outer) * 4))));
    TARE_TRY(out.add(matrix, "weight.nested_quant_map", Tensor::make(DType::kF32, {256}, Buffer::own(*f.scale_lut))));
    state += fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})", share,
                         static_cast<double>(f.nested_offset));
  } else {
    std::vector<float> absmax(static_cast<size_t>(blocks));
    for (size_t i = 0; i < absmax.size(); ++i) absmax[i] = f.a->value(static_cast<int64_t>(i));
    TARE_TRY(out.add(matrix, "weight.absmax", Tensor::make(DType::kF32, {blocks}, Buffer::own(std::move(absmax)))));
  }
  state += "}";
  const auto length = static_cast<int64_t>(state.size());
  TARE_TRY(out.add(matrix, "weight.quant_state.bitsandbytes__" + type,
                   Tensor::make(DType::kU8, {length}, Buffer::own(std::vector<char>(state.begin(), state.end())))));
  out.scheme = {{"type", type}, {"nested", nested}, {"threshold", 6.0}};
  return out;
}

// LLM.int8: w = c * SCB / 127.
Result<StoredMatrix> store_eight_bit(const MatrixToStore& matrix, Losses& losses) {
  const QuantizedFields& f = matrix.weight->fields();
  const std::string where = matrix.name();
  const bool row = f.a && f.a->type == GridType::kF32 && f.a->tile_n == 1 && f.a->tile_k >= f.k && whole(*f.a, f);
  if (!row || !f.A || !f.A_divides || !f.code_first || f.A->value(0) != 127.0f || f.b || f.code_stride != f.k ||
      f.group_of_k || !std::holds_alternative<std::monostate>(f.z)) {
    return losses.refuse(where, describe(matrix.weight->spec()) + ", not that of LLM.int8");
  }
  const tensor::ActivationSpec& a = matrix.activation;
  if (a.type != tensor::ActivationType::kS8 || !a.dynamic || a.granularity != tensor::ActivationGranularity::kToken) {
    TARE_TRY(losses.lose(where, fmt::format("inputs {}: LLM.int8 has s8 a token", describe(a))));
  }
  StoredMatrix out;
  TARE_TRY(out.add(matrix, "weight",
                   Tensor::make(DType::kI8, {f.n, f.k}, f.codes.slice(0, static_cast<size_t>(f.n * f.k)))));
  TARE_TRY(
      out.add(matrix, "SCB", Tensor::make(DType::kF32, {f.n}, f.a->values.slice(0, static_cast<size_t>(f.n) * 4))));
  TARE_TRY(out.add(matrix, "weight_format", Tensor::make(DType::kU8, {}, Buffer::own(std::vector<uint8_t>{0}))));
  out.scheme = {{"type", "int8"}, {"nested", false}, {"threshold", a.outlier_threshold}};
  return out;
}

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses) {
  if (is_embedding(matrix.module)) return store_dense(matrix, "a quantized embedding table", losses);
  const bool integer = matrix.weight->fields().kind == CodeKind::kInt;
  return integer ? store_eight_bit(matrix, losses) : store_four_bit(matrix, losses);
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   const WriteRequest& request) {
  TARE_ASSIGN(const json::object first, only_scheme(modules, "bitsandbytes", "write it as tare"));
  json::array skipped;
  for (const std::string& name : dense) {
    if (!is_embedding(name)) skipped.emplace_back(name);
  }
  const std::string type(first.at("type").as_string());
  const bool eight = type == "int8";
  return json::object{{"quant_method", "bitsandbytes"},
                      {"load_in_4bit", !eight},
                      {"load_in_8bit", eight},
                      {"bnb_4bit_quant_type", eight ? "fp4" : type},
                      {"bnb_4bit_use_double_quant", first.at("nested")},
                      {"bnb_4bit_compute_dtype", eight ? "float32" : output_dtype(request.weights->config)},
                      {"bnb_4bit_quant_storage", "uint8"},
                      {"llm_int8_threshold", first.at("threshold")},
                      {"llm_int8_skip_modules", skipped.empty() ? json::value() : json::value(std::move(skipped))},
                      {"llm_int8_has_fp16_weight", false},
                      {"llm_int8_enable_fp32_cpu_offload", false}};
}

}  // namespace

CheckpointWriter bitsandbytes_writer() {
  return {.name = "bitsandbytes",
          .writes = "nf4 and fp4 with single or double quantized scales, LLM.int8",
          .store = store,
          .configuration = configuration};
}

}  // namespace tare::checkpoints
