#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tare::io {

/// All tensors of one model, over one safetensors file or many.
struct TensorFiles {
  struct Entry {
    tensor::Tensor tensor;  // shares the bytes of its file
    size_t file = 0;        // place in `files`
  };

  std::vector<std::string> files;                                         // paths
  std::vector<std::map<std::string, std::string, std::less<>>> metadata;  // `__metadata__` of each file
  std::map<std::string, Entry, std::less<>> tensors;

  /// Safetensors files in the folder that belong to no model there (adapters, other layouts): not read. For the caller
  /// to say.
  std::vector<std::string> unread_files;

  const tensor::Tensor* find(std::string_view name) const;
  uint64_t total_bytes() const;
};

/// Opens a safetensors file, or a folder with either `model.safetensors.index.json` and its shards or
/// `model.safetensors`. Only headers are read now.
///
/// With an index: every file it names is there, every tensor it names is in the file it names, and those files hold
/// nothing else; each tensor is in one file only; no file of another save (`model-*-of-*.safetensors`, or
/// `model.safetensors` beside an index that does not name it) lies beside them. All names that break one of these are
/// listed, both sets of them.
/// Errors: kInvalidInput, kIo.
Result<TensorFiles> open_tensor_files(const std::string& path);

}  // namespace tare::io
