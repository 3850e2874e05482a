#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/buffer.h"

namespace tare::testing {

/// Little-endian bytes of a number.
template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// A GGUF string: length and bytes.
inline std::string gguf_string(std::string_view text) {
  return bytes_of<uint64_t>(text.size()) + std::string(text);
}

/// Bytes of a safetensors file from its header text and its data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return bytes_of<uint64_t>(header.size()) + std::string(header) + std::string(data);
}

inline Buffer to_buffer(std::string bytes) {
  return Buffer::own(std::move(bytes));
}

}  // namespace tare::testing
