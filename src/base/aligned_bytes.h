#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace tare {

/// Owned, writable bytes that start at a multiple of 64; large ones at 2 MB with huge pages asked for. Not initialized.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t size) : size_(size) {
    constexpr size_t kHuge = size_t{2} << 20;
    const size_t alignment = size >= kHuge ? kHuge : 64;
    const size_t rounded = (size + alignment - 1) / alignment * alignment;
    if (rounded == 0) return;
    void* memory = std::aligned_alloc(alignment, rounded);
    if (!memory) throw std::bad_alloc();
    if (alignment == kHuge) ::madvise(memory, rounded, MADV_HUGEPAGE);  // a hint: without huge pages it is only slower
    data_.reset(static_cast<std::byte*>(memory));
  }

  std::span<std::byte> bytes() { return {data_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

/// Floats in such memory, zero at first. Rows of a large matrix that are met column by column need it: with small pages
/// each row costs a walk through the page tables.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(size_t count) : bytes_(count * sizeof(float)), count_(count) {
    if (count > 0) std::memset(bytes_.data(), 0, bytes_.size());
  }

  float* data() { return reinterpret_cast<float*>(bytes_.data()); }
  const float* data() const { return reinterpret_cast<const float*>(bytes_.data()); }
  size_t size() const { return count_; }

 private:
  AlignedBytes bytes_;
  size_t count_ = 0;
};

}  // namespace tare
