#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "checkpoints/affine.h"
#include "checkpoints/compressed_tensors.h"
#include "checkpoints/write.h"
#include "numerics/mini_float.h"
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

// tensor, channel, group or block, from the tile of the scales.
struct Strategy {
  std::string name;
  int64_t group_size = 0;
  std::vector<int64_t> block;
};

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

// One module on its way: its tensors, and the arguments that the configuration will hold.
class Store {
 public:
  Store(const MatrixToStore& matrix, Losses& losses)
      : matrix_(matrix), weight_(*matrix.weight), f_(matrix.weight->fields()), losses_(losses), where_(matrix.name()) {}

  Result<StoredMatrix> run() {
    TARE_ASSIGN(json::value inputs, activation_arguments());
    switch (f_.kind) {
      case CodeKind::kE4M3:
        TARE_TRY(store_e4m3());
        break;
      case CodeKind::kE2M1:
        TARE_TRY(store_e2m1());
        break;
      default:
        TARE_TRY(store_integers());
        break;
    }
    out_.scheme = {{"targets", json::array()},
                   {"weights", std::move(weights_)},
                   {"input_activations", std::move(inputs)},
                   {"output_activations", nullptr},
                   {"format", format_}};
    return std::move(out_);
  }

 private:
  const ActivationSpec& activation() const { return matrix_.activation; }
  bool weight_only() const { return activation().type == ActivationType::kNone; }

  Status add(std::string_view suffix, Result<Tensor> tensor) { return out_.add(matrix_, suffix, std::move(tensor)); }

  // One number, in the type of the model where that holds it exactly, as other writers store it.
  Status add_scalar(std::string_view suffix, float value) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const json::value* name = json::find(*matrix_.config, key);
      if (!name || !name->is_string()) continue;
      const bool f16 = name->get_string() == "float16";
      if (!f16 && name->get_string() != "bfloat16") break;
      const uint16_t half = f16 ? numerics::f32_to_f16(value) : numerics::f32_to_bf16(value);
      if ((f16 ? numerics::f16_to_f32(half) : numerics::bf16_to_f32(half)) != value) break;
      return add(suffix, Tensor::make(f16 ? DType::kF16 : DType::kBF16, {1}, Buffer::own(std::vector<uint16_t>{half})));
    }
    return add(suffix, Tensor::make(DType::kF32, {1}, Buffer::own(std::vector<float>{value})));
  }

  Result<json::value> activation_arguments() {
    const ActivationSpec& spec = activation();
    if (spec.type == ActivationType::kNone) return json::value(nullptr);
    const bool floating = spec.type == ActivationType::kE4M3 || spec.type == ActivationType::kE2M1;
    const bool known = floating || spec.type == ActivationType::kS8 || spec.type == ActivationType::kS4;
    if (!known || spec.outlier_threshold > 0 || spec.cap > 0) {
      TARE_TRY(losses_.lose(where_, fmt::format("inputs quantized as {}: left out", describe(spec))));
      dropped_ = true;
      return json::value(nullptr);
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
    const int bits = spec.type == ActivationType::kS4 || spec.type == ActivationType::kE2M1 ? 4 : 8;
    json::value dynamic = spec.dynamic;
    if (spec.type == ActivationType::kE2M1 && spec.scale > 0) {
      strategy.name = "tensor_group";
      dynamic = "local";
      TARE_TRY(add("input_global_scale",
                   Tensor::make(DType::kF32, {1}, Buffer::own(std::vector<float>{inverse_of(spec.scale)}))));
    } else if (!spec.dynamic) {
      TARE_TRY(add_scalar("input_scale", spec.scale));
      if (!spec.symmetric) {
        if (spec.zero < -128 || spec.zero > 127) return losses_.refuse(where_, "an input zero point beyond int8");
        TARE_TRY(add("input_zero_point",
                     Tensor::make(DType::kI8, {1}, Buffer::own(std::vector<int8_t>{static_cast<int8_t>(spec.zero)}))));
      }
    }
    return json::value(arguments(bits, floating, spec.symmetric, strategy, std::move(dynamic)));
  }

  // The number that divides, whose reciprocal was kept; short ones first, since writers round them to 16 bits.
  static float inverse_of(float scale) {
    const float inverse = 1.0f / scale;
    const float candidates[] = {numerics::bf16_to_f32(numerics::f32_to_bf16(inverse)),
                                numerics::f16_to_f32(numerics::f32_to_f16(inverse)), inverse,
                                std::nextafter(inverse, 0.0f), std::nextafter(inverse, 2 * inverse)};
    for (const float c : candidates) {
      if (std::isfinite(c) && 1.0f / c == scale) return c;
    }
    return inverse;
  }

  Status store_integers() {
    const int64_t k = f_.k;
    const int64_t group = k % 128 == 0 ? 128 : k % 32 == 0 ? 32 : k;
    TARE_ASSIGN(AffineMatrix m, affine_or_rounded(weight_, where_, f_.bits <= 4 ? 4 : 8, group, losses_));
    const int32_t half = 1 << (m.bits - 1);
    const auto outside = [&](int32_t z) { return z < 0 || z >= 2 * half; };
    std::string why;
    if (m.groups > 1 && k % m.group != 0) {
      why = fmt::format("groups of {} over {} columns: the last one is short", m.group, k);
    } else if (m.zero ? outside(*m.zero) : std::any_of(m.zeros.begin(), m.zeros.end(), outside)) {
      why = "zero points beyond the codes";
    }
    if (!why.empty()) {
      TARE_ASSIGN(m, round_again(weight_, where_, m.bits, group, why, losses_));
    }
    const bool per_tensor = m.groups == 1 && m.tile_n >= m.n && m.n > 1 && m.symmetric();
    Strategy strategy{.name = per_tensor ? "tensor" : m.groups == 1 ? "channel" : "group"};
    if (m.groups > 1) strategy.group_size = m.group;
    const tensor::Shape scale_shape = per_tensor ? tensor::Shape{1} : tensor::Shape{m.n, m.groups};
    if (per_tensor) m.scales.resize(1);
    const bool packed = weight_only() || dropped_;
    if (!m.group_of_k.empty() && !packed) return losses_.refuse(where_, "an order of groups beside quantized inputs");
    TARE_TRY(add_scales(m, scale_shape));
    std::vector<int32_t> zeros;
    if (!m.symmetric()) {
      for (int64_t row = 0; row < m.n; ++row) {
        for (int64_t g = 0; g < m.groups; ++g) zeros.push_back(m.zero_at(row, g));
      }
    }
    if (packed) {
      TARE_TRY(add_packed(m, zeros));
    } else {
      std::vector<int8_t> codes(m.codes.size());
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(int{m.codes[i]} - half);
      TARE_TRY(add("weight", Tensor::make(DType::kI8, {m.n, k}, Buffer::own(std::move(codes)))));
      if (!zeros.empty()) {
        std::vector<int8_t> narrow;
        narrow.reserve(zeros.size());
        for (const int32_t z : zeros) narrow.push_back(static_cast<int8_t>(z - half));
        TARE_TRY(add("weight_zero_point", Tensor::make(DType::kI8, scale_shape, Buffer::own(std::move(narrow)))));
      }
    }
    format_ = packed ? "pack-quantized" : "int-quantized";
    weights_ = arguments(m.bits, false, zeros.empty(), strategy, false);
    if (!m.group_of_k.empty()) {
      weights_["actorder"] = "group";
      TARE_TRY(add("weight_g_idx", Tensor::make(DType::kI32, {k}, Buffer::own(std::move(m.group_of_k)))));
    }
    return {};
  }

  Status add_scales(const AffineMatrix& m, const tensor::Shape& shape) {
    if (m.scale_dtype == DType::kF32) {
      return add("weight_scale", Tensor::make(DType::kF32, shape, Buffer::own(m.scales)));
    }
    TARE_ASSIGN(std::vector<uint16_t> scales, half_scales(m, m.scale_dtype, where_, losses_));
    return add("weight_scale", Tensor::make(m.scale_dtype, shape, Buffer::own(std::move(scales))));
  }

  // Rows are bit streams of codes along k; zero points are bit streams down the rows of each group.
  Status add_packed(const AffineMatrix& m, const std::vector<int32_t>& zeros) {
    const int64_t words = ceil_div(m.k * m.bits, 32);
    std::vector<std::byte> codes(static_cast<size_t>(m.n * words * 4));
    for (int64_t row = 0; row < m.n; ++row) {
      const uint8_t* in = m.codes.data() + row * m.k;
      for (int64_t i = 0; i < m.k; ++i) {
        numerics::write_code(codes.data() + row * words * 4, i * m.bits, m.bits, in[i]);
      }
    }
    TARE_TRY(add("weight_packed", Tensor::make(DType::kI32, {m.n, words}, Buffer::own(std::move(codes)))));
    TARE_TRY(add("weight_shape", Tensor::make(DType::kI64, {2}, Buffer::own(std::vector<int64_t>{m.n, m.k}))));
    if (zeros.empty()) return {};
    const int64_t zero_words = ceil_div(m.n * m.bits, 32);
    std::vector<std::byte> column(static_cast<size_t>(zero_words * 4));
    std::vector<std::byte> stored(static_cast<size_t>(zero_words * m.groups * 4));
    for (int64_t g = 0; g < m.groups; ++g) {
      std::fill(column.begin(), column.end(), std::byte{0});
      for (int64_t row = 0; row < m.n; ++row) {
        numerics::write_code(column.data(), row * m.bits, m.bits,
                             static_cast<uint32_t>(zeros[static_cast<size_t>(row * m.groups + g)]));
      }
      for (int64_t w = 0; w < zero_words; ++w) {
        std::memcpy(stored.data() + (w * m.groups + g) * 4, column.data() + w * 4, 4);
      }
    }
    return add("weight_zero_point", Tensor::make(DType::kI32, {zero_words, m.groups}, Buffer::own(std::move(stored))));
  }

  Result<Buffer> bytes_of_codes(int bits) {
    const int64_t stride = numerics::packed_bytes(f_.k, bits);
    if (f_.code_stride == stride && f_.code_bit_offset == 0) {
      return f_.codes.slice(0, static_cast<size_t>(f_.n * stride));
    }
    std::vector<std::byte> out(static_cast<size_t>(f_.n * stride));
    for (int64_t row = 0; row < f_.n; ++row) {
      for (int64_t i = 0; i < f_.k; ++i)
        numerics::write_code(out.data() + row * stride, i * bits, bits, weight_.code(row, i));
    }
    return Buffer::own(std::move(out));
  }

  // The grid as the file holds it: its own tiles, whole.
  Result<Tensor> grid_tensor(const Grid& grid, DType dtype, const tensor::Shape& shape) {
    if (grid.origin_n != 0 || grid.origin_k != 0 || grid.stride != ceil_div(f_.k, grid.tile_k)) {
      return losses_.refuse(where_, "a view over columns");
    }
    TARE_ASSIGN(const int64_t count, tensor::element_count(shape));
    const auto bytes = static_cast<size_t>(count * tensor::grid_element_bytes(grid.type));
    return Tensor::make(dtype, shape, grid.values.slice(0, bytes));
  }

  Status store_e4m3() {
    if (f_.rule != tensor::Rule::kScaleFirst || f_.b || f_.group_of_k ||
        !std::holds_alternative<std::monostate>(f_.z)) {
      return losses_.refuse(where_, describe(weight_.spec()));
    }
    TARE_ASSIGN(Buffer codes, bytes_of_codes(8));
    TARE_TRY(add("weight", Tensor::make(DType::kF8E4M3, {f_.n, f_.k}, std::move(codes))));
    Grid scales;
    if (f_.a && !f_.A) {
      scales = *f_.a;
    } else if (f_.A && !f_.a) {
      scales = *f_.A;
      if (f_.A_divides) {
        TARE_TRY(losses_.lose(where_, "a scale that divides; its reciprocal is rounded to F32"));
        std::vector<float> inverse(static_cast<size_t>(scales.tiles_n * scales.tiles_k));
        for (size_t i = 0; i < inverse.size(); ++i) inverse[i] = 1.0f / scales.value(static_cast<int64_t>(i));
        TARE_ASSIGN(scales, Grid::make(GridType::kF32, f_.n, f_.k, scales.tile_n, scales.tile_k,
                                       Buffer::own(std::move(inverse))));
      }
    } else {
      return losses_.refuse(where_, "scales in two levels on e4m3 codes");
    }
    const int64_t rows = ceil_div(f_.n, scales.tile_n), columns = ceil_div(f_.k, scales.tile_k);
    if (scales.type == GridType::kE8M0 && scales.tile_n == 1 && scales.tile_k == 32 && f_.k % 32 == 0) {
      TARE_TRY(add("weight_scale", grid_tensor(scales, DType::kU8, {rows, columns})));
      format_ = "mxfp8-quantized";
      weights_ = arguments(8, true, true, {.name = "group", .group_size = 32}, false);
      weights_["scale_dtype"] = "torch.uint8";
      return {};
    }
    if (tensor::is_integer(scales.type) || scales.type == GridType::kE4M3 || scales.type == GridType::kE8M0) {
      return losses_.refuse(where_, fmt::format("scales of type {}", grid_type_name(scales.type)));
    }
    Strategy strategy;
    const bool whole_row = scales.tile_k >= f_.k;
    if (whole_row && scales.tile_n >= f_.n && f_.n > 1) {
      strategy.name = "tensor";
    } else if (whole_row && scales.tile_n == 1) {
      strategy.name = "channel";
    } else if (scales.tile_n == 1) {
      if (f_.k % scales.tile_k != 0) return losses_.refuse(where_, "a short last group");
      strategy = {.name = "group", .group_size = scales.tile_k};
    } else {
      strategy = {.name = "block", .block = {scales.tile_n, scales.tile_k}};
    }
    const DType dtype = scales.type == GridType::kF16    ? DType::kF16
                        : scales.type == GridType::kBF16 ? DType::kBF16
                                                         : DType::kF32;
    const tensor::Shape shape = strategy.name == "tensor" ? tensor::Shape{1} : tensor::Shape{rows, columns};
    TARE_TRY(add("weight_scale", grid_tensor(scales, dtype, shape)));
    format_ = weight_only() || dropped_ ? "naive-quantized" : "float-quantized";
    weights_ = arguments(8, true, true, strategy, false);
    return {};
  }

  Status store_e2m1() {
    const bool plain = f_.rule == tensor::Rule::kScaleFirst && !f_.b && !f_.group_of_k && f_.a && f_.a->tile_n == 1 &&
                       f_.code_bit_offset % 8 == 0 && std::holds_alternative<std::monostate>(f_.z);
    const bool nv = plain && f_.a->type == GridType::kE4M3 && f_.a->tile_k == 16 && f_.k % 16 == 0;
    const bool mx = plain && f_.a->type == GridType::kE8M0 && f_.a->tile_k == 32 && f_.k % 32 == 0 && !f_.A;
    if (!nv && !mx) return losses_.refuse(where_, describe(weight_.spec()));
    TARE_ASSIGN(Buffer codes, bytes_of_codes(4));
    TARE_TRY(add("weight_packed", Tensor::make(DType::kU8, {f_.n, f_.k / 2}, std::move(codes))));
    const int64_t group = nv ? 16 : 32;
    TARE_TRY(add("weight_scale", grid_tensor(*f_.a, nv ? DType::kF8E4M3 : DType::kU8, {f_.n, f_.k / group})));
    weights_ = arguments(4, true, true, {.name = nv ? "tensor_group" : "group", .group_size = group}, false);
    weights_["scale_dtype"] = nv ? "torch.float8_e4m3fn" : "torch.uint8";
    format_ = nv ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
    if (!nv) return {};
    float global = 1.0f;
    if (f_.A) {
      if (f_.A->tile_n < f_.n || f_.A->tile_k < f_.k)
        return losses_.refuse(where_, "outer scales of parts of the matrix");
      const float outer = f_.A->value(0);
      global = f_.A_divides ? outer : inverse_of(outer);
      if (!f_.A_divides && 1.0f / global != outer) {
        TARE_TRY(losses_.lose(where_, "a global scale that multiplies; the reciprocal is rounded"));
      }
      if (!f_.A_divides) {
        TARE_TRY(losses_.lose(where_, "the order of a product with the global scale: last bits of f32"));
      }
    }
    return add("weight_global_scale", Tensor::make(DType::kF32, {1}, Buffer::own(std::vector<float>{global})));
  }

  const MatrixToStore& matrix_;
  const QuantizedTensor& weight_;
  const QuantizedFields& f_;
  Losses& losses_;
  std::string where_;
  StoredMatrix out_;
  json::object weights_;
  std::string format_;
  bool dropped_ = false;  // inputs that were quantized and cannot be said
};

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses) {
  return Store(matrix, losses).run();
}

// "fp8_e4m3" or "int8", the same for both: one scale a tensor, as the stored k_scale and v_scale.
bool says_kv(const tensor::KvSpec& kv) {
  return kv.k_dtype == kv.v_dtype && (kv.k_dtype == "fp8_e4m3" || kv.k_dtype == "int8");
}

Status check(const WriteRequest& request, Losses& losses) {
  const tensor::KvSpec& kv = request.weights->kv;
  if (kv.k_dtype.empty() || says_kv(kv)) return {};
  return losses.lose("KV cache", fmt::format("{}, {}: left out", kv.k_dtype, kv.v_dtype));
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   const WriteRequest& request) {
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
  json::value kv_scheme;
  const tensor::KvSpec& kv = request.weights->kv;
  if (says_kv(kv)) kv_scheme = arguments(8, kv.k_dtype != "int8", true, {.name = "tensor"}, false);
  return json::object{{"quant_method", "compressed-tensors"},
                      {"version", "0.19.0"},
                      {"format", format},
                      {"quantization_status", "compressed"},
                      {"global_compression_ratio", nullptr},
                      {"config_groups", std::move(config_groups)},
                      {"ignore", std::move(ignore)},
                      {"kv_cache_scheme", std::move(kv_scheme)}};
}

}  // namespace

CheckpointWriter compressed_tensors_writer() {
  return {
      .name = "compressed-tensors",
      .writes = "pack-quantized with act-order, int-, float-, naive-quantized, nvfp4, mxfp4, mxfp8; mixed; KV scales",
      .holds_kv = true,
      .mixed = {.held = true, .joined_alike = true, .bits = {4, 8}},
      .store = store,
      .configuration = configuration,
      .check = check};
}

}  // namespace tare::checkpoints
