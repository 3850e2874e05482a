#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "io/ggml_types.h"
#include "tensor/quantized_tensor.h"

namespace tare::checkpoints {

/// Where the parts of one block go.
struct BlockOut {
  uint8_t* codes;      // packed codes of the block
  uint8_t* a;          // inner scales, one byte each (or f16 when the type has 16-bit ones)
  uint8_t* b;          // inner minima
  uint8_t* outer;      // f16
  uint8_t* outer_min;  // f16
};

/// One ggml block type. inner: elements that share one inner scale; outer: a super-block shares one f16.
struct BlockLayout {
  std::string_view name;
  tensor::CodeKind kind;
  int bits;
  int inner;
  tensor::GridType a;
  std::optional<tensor::GridType> b;
  bool outer;
  std::optional<float> zero;
  void (*unpack)(const uint8_t* block, const BlockOut& out);
};
std::span<const BlockLayout> ggml_layouts();
/// Values of table-coded types: 1 bit (Q1_0) or 4 (IQ4).
std::span<const float> ggml_lut(int bits);

/// What a ggml block type becomes: a quantized form, a dense dtype, or a refusal with its reason.
/// n, k: the matrix [N, K]; scaled: a tensor scale stands beside it (NVFP4).
/// Errors: kUnsupported for lattice codebooks (IQ1, IQ2, IQ3) and activation-only types.
Result<std::variant<tensor::DType, tensor::QuantSpec>> ggml_form(const io::GgmlType& type, int64_t n, int64_t k,
                                                                 bool scaled, std::string_view name);

/// Repacks rows of ggml blocks into codes in natural k order and grids of scales. Exact: dequantizing gives what ggml's
/// own to_float gives, bit for bit.
/// data: n rows of k / block_size blocks.  row_source: row i of the result is row row_source[i] of the data (empty:
/// the same row); used to undo llama.cpp's permutation of q and k.  tensor_scale: multiplies every weight (NVFP4).
/// Errors: a type without a quantized form; NaN or inf among the scales (named by tile).
Result<tensor::QuantizedTensor> repack_ggml(const io::GgmlType& type, const Buffer& data, int64_t n, int64_t k,
                                            const std::vector<int32_t>& row_source, std::optional<float> tensor_scale);

}  // namespace tare::checkpoints
