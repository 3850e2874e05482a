#pragma once

#include "checkpoints/parts.h"

namespace tare::checkpoints {

/// "P.compressed", "P.bitmask", "P.shape" of the sparse-24-bitmask form (docs/formats.md 3.8): two of each four values
/// along K are kept.
struct SparseParts {
  tensor::Tensor compressed;  // [N, K/2]
  tensor::Tensor bitmask;     // u8 [N, ceil(K/8)], bit i of byte c is column 8c + i
  int64_t n = 0;
  int64_t k = 0;
};

/// Takes the three tensors. Errors: shapes that do not fit each other.
Result<SparseParts> take_sparse(Parts& parts, std::initializer_list<tensor::DType> dtypes);

/// The matrix [N, K] with zeros put back, elements of the compressed dtype.
/// Errors: a row of the mask that keeps another number of values than there are.
Result<Buffer> expand_sparse(const SparseParts& sparse, std::string_view name);

/// A dense weight in this form: adds "P.weight".
Status read_sparse_dense(Parts& parts, tensor::ModelWeights& out);

/// A dense weight in the sparse-bitmask form (any pattern of zeros): "P.weight.shape" [2], ".compressed" [values],
/// ".bitmask" u8 [N, ceil(K/8)], ".row_offsets" [N], the values before each row. Adds "P.weight".
/// Errors: a mask that keeps another number of values; offsets that are not those of the mask.
Status read_bitmask_dense(Parts& parts, tensor::ModelWeights& out);

}  // namespace tare::checkpoints
