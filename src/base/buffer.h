#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace tare {

/// Read-only bytes and whatever keeps them alive: heap memory or a mapped file. Copies share; slices share.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<const void> owner, const std::byte* data, size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}

  /// Takes over a container of trivially copyable elements (a vector).
  template <class Container>
  static Buffer own(Container values) {
    auto owner = std::make_shared<const Container>(std::move(values));
    const auto bytes = std::as_bytes(std::span(*owner));
    return Buffer(owner, bytes.data(), bytes.size());
  }

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// offset + size must lie inside (the caller has checked it: sizes from files are not trusted).
  Buffer slice(size_t offset, size_t size) const { return Buffer(owner_, data_ + offset, size); }

  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tare
