#pragma once

#include "base/result.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

/// Weights that keep two of each four values along K, packed for the 2:4 kernels of Marlin (docs/formats.md 3.7, 8.8).
struct Sparse24 {
  int64_t n = 0, k = 0;
  int bits = 4;           // 4 or 8; codes have 2^(bits-1) added
  int64_t group = 0;      // columns that share a scale; k: one a row
  tensor::Tensor codes;   // int32 [K/32, N*16*bits/32]
  tensor::Tensor meta;    // int16 [K/32, 2N]: which two of four
  tensor::Tensor scales;  // f16 [G, N]
  std::string name;
  int64_t bytes = 0;
};

/// Takes the three tensors by the names that the format gives them and adds "P.weight". group_size -1: one a row.
/// Errors: shapes that do not fit each other. At load: a mask that names one position twice.
Status read_sparse24(Parts& parts, std::string_view codes, std::string_view meta, std::string_view scales, int bits,
                     int64_t group_size, tensor::ModelWeights& out);

}  // namespace tare::checkpoints
