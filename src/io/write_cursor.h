#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::io {

/// Where the bytes of a declared tensor belong in its file.
struct PlannedTensor {
  std::string name;
  size_t file = 0;  // of a sharded output
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Holds a writer to what it declared: tensors arrive in order, each in pieces of any length, each whole.
class WriteCursor {
 public:
  explicit WriteCursor(std::vector<PlannedTensor> plan) : plan_(std::move(plan)) {}

  struct Place {
    size_t file = 0;
    uint64_t offset = 0;
  };
  /// Where the next `bytes` bytes of tensor `name` go. Errors: kInternal (another tensor is due, or too many bytes).
  Result<Place> next(std::string_view name, uint64_t bytes);

  /// Errors: kInternal, naming the first tensor that is not whole.
  Status complete() const;

 private:
  std::vector<PlannedTensor> plan_;
  size_t current_ = 0;
  uint64_t done_ = 0;  // bytes of the current tensor
};

}  // namespace tare::io
