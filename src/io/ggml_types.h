#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tare::io {

/// Storage of one ggml tensor type: elements come in blocks of `block_size` along the last axis (ggml's first), each
/// `block_bytes` long. What the bytes mean is told in checkpoints/.
struct GgmlType {
  uint32_t id;
  std::string_view name;
  int64_t block_size;
  int64_t block_bytes;
};

/// The row of a type id. Errors: kUnsupported, naming the number (removed ids and ids private to forks included).
Result<const GgmlType*> ggml_type(uint32_t id);
/// The row of a name ("Q4_K"), or null.
const GgmlType* find_ggml_type(std::string_view name);

/// Bytes of a tensor of this type. Errors: a last axis that is not whole blocks, an overflow, an empty extent.
Result<uint64_t> ggml_tensor_bytes(const GgmlType& type, const tensor::Shape& shape);

}  // namespace tare::io
