#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoints/losses.h"
#include "io/ggml_types.h"
#include "tensor/quantized_tensor.h"

namespace tare::checkpoints {

/// A matrix [N, K] taken apart for one ggml block type: what `pack_ggml` puts into blocks.
struct GgmlParts {
  const io::GgmlType* type = nullptr;
  int64_t n = 0, k = 0;
  std::vector<uint8_t> codes;             // [N, K], one a byte
  std::vector<uint8_t> a, b;              // inner scales and minima, block after block
  std::vector<uint8_t> outer, outer_min;  // f16, one a block
};

/// The block type that holds a matrix exactly: its own form (any type but TQ1_0 and NVFP4), or, for scale * (code -
/// zero) with f16 scales over whole runs of 32 columns, the narrowest of Q4_0, Q4_1, Q5_0 and Q8_0 that has room for
/// code - zero. A scale that f16 does not hold is a loss (rounded). Errors: kUnsupported, naming what does not fit.
Result<GgmlParts> ggml_parts(const tensor::QuantizedTensor& weight, const std::string& where, Losses& losses);

/// The blocks, row after row; row r of the file is row `row_source[r]` of the matrix (empty: the same order).
std::vector<uint8_t> pack_ggml(const GgmlParts& parts, const std::vector<int32_t>& row_source);

}  // namespace tare::checkpoints
