#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "io/ggml_types.h"
#include "tensor/quantized_tensor.h"

namespace tare::checkpoints {

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
