#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace tare::kernels {

/// Zeroed memory for packed weights, in 2 MB pages where the system gives them (a stream of weights is otherwise bound
/// by page walks). Arrays lie one after the other in regions of 64 MB, so that their ends are in huge pages too and
/// nothing is wasted; a region is given back with its last array.
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

  struct Region;

 private:
  std::shared_ptr<Region> region_;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tare::kernels
