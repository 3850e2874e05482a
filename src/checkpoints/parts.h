#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoints/source.h"
#include "tensor/quantized_tensor.h"

namespace tare::checkpoints {

/// The tensors "P.<suffix>" of one quantized module P, taken one by one with what the format says of each.
class Parts {
 public:
  Parts(Source& source, std::string module) : source_(&source), module_(std::move(module)) {}

  const std::string& module() const { return module_; }
  std::string name(std::string_view suffix) const { return module_ + "." + std::string(suffix); }
  bool has(std::string_view suffix) const { return source_->tensors.contains(name(suffix)); }
  /// Looks without taking. Errors: absent; another number of axes.
  Result<tensor::Shape> shape(std::string_view suffix, int64_t rank) const;
  Result<tensor::DType> dtype(std::string_view suffix) const;

  /// Errors: absent; another dtype or shape.
  Result<tensor::Tensor> take(std::string_view suffix, std::initializer_list<tensor::DType> dtypes,
                              const tensor::Shape& shape);
  /// One of several shapes ([] or [1]).
  Result<tensor::Tensor> take_shaped(std::string_view suffix, std::initializer_list<tensor::DType> dtypes,
                                     std::initializer_list<tensor::Shape> shapes);
  /// The only element of a [] or [1] tensor as f32. Errors: also NaN and inf.
  Result<float> take_scalar(std::string_view suffix, std::initializer_list<tensor::DType> dtypes);

  /// Bytes of all tensors taken so far.
  int64_t bytes() const { return bytes_; }

  /// An error that names this module's tensor and both sides.
  Error contradiction(std::string_view suffix, std::string expected, std::string found) const;

 private:
  Source* source_;
  std::string module_;
  int64_t bytes_ = 0;
};

inline constexpr std::initializer_list<tensor::DType> kHalfFloats = {tensor::DType::kF16, tensor::DType::kBF16};
inline constexpr std::initializer_list<tensor::DType> kFloats = {tensor::DType::kF32, tensor::DType::kF16,
                                                                 tensor::DType::kBF16};

/// Grid type of a float tensor of scales.
tensor::GridType grid_type(tensor::DType dtype);

/// [rows, columns] of fixed-width elements (1, 2 or 4 bytes) -> [columns, rows].
Buffer transpose(const Buffer& data, int64_t rows, int64_t columns, int element_bytes);

/// 32-bit word `index` of a buffer (unaligned, little-endian).
inline uint32_t word_at(const Buffer& data, int64_t index) {
  uint32_t word;
  __builtin_memcpy(&word, data.data() + index * 4, 4);
  return word;
}

/// True if `entry` names the module: the whole of it, a dotted part of it or a run of parts ("lm_head",
/// "mlp.gate" in "model.layers.0.mlp.gate").
bool names_module(std::string_view entry, std::string_view module);

/// A list of names in a configuration (absent or null: empty). Errors: something else than a list of strings.
Result<std::vector<std::string>> string_list(const json::object& from, std::string_view key, std::string_view where);

/// I32 or I64 tensor as integers.
Result<std::vector<int64_t>> integers(const tensor::Tensor& t, std::string_view name);

/// The map column -> group of an act-order file, checked: G = ceil(k / group) groups, each with exactly its number of
/// columns. Nothing when it is the natural order k / group.
/// Errors: a group outside, a group of another size.
Result<std::shared_ptr<const std::vector<int32_t>>> group_map(const tensor::Tensor& g_idx, int64_t k, int64_t group,
                                                              std::string_view name);

/// Refuses the NaN codes of e4m3 (0x7f and 0xff), naming the byte.
Status check_e4m3(const Buffer& codes, const std::string& name);

/// A weight whose stored form the quantized type does not have: it is decoded to f32 when loaded.
Status add_decoded(tensor::ModelWeights& out, const std::string& weight, const tensor::Shape& shape,
                   int64_t stored_bytes, std::function<Result<std::vector<float>>()> decode);

/// Adds "P.weight" with a loader that builds the quantized tensor when asked; errors of the loader name the weight.
Status add_quantized(tensor::ModelWeights& out, const std::string& weight, const tensor::Shape& shape,
                     const tensor::QuantSpec& spec, const tensor::ActivationSpec& activation, int64_t stored_bytes,
                     std::function<Result<tensor::QuantizedTensor>()> build);

}  // namespace tare::checkpoints
