#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace tare::kernels {

/// Zeroed memory for packed weights. Whole 2 MB pages inside it are asked for as huge pages (a stream of weights is
/// otherwise bound by page walks); the ends stay on small pages, so nothing is wasted.
class HugeArray {
 public:
  HugeArray() = default;
  ~HugeArray();
  HugeArray(HugeArray&& other) noexcept;
  HugeArray& operator=(HugeArray&& other) noexcept;
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  /// Errors: the system has no memory.
  static Result<HugeArray> make(int64_t bytes);

  uint8_t* data() const { return data_; }  // 64-byte aligned
  int64_t bytes() const { return bytes_; }

 private:
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tare::kernels
