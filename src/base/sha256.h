#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tare {

/// Lower-case hexadecimal SHA-256. `update` may be called any number of times before `hex`.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  std::string hex();

 private:
  void* context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace tare
