#pragma once

#include <cstddef>
#include <cstdint>

/// Dense bit packing, least significant bit first: code i of width `bits` sits in bits [i*bits, (i+1)*bits) of the
/// stream. Codes may straddle bytes (and 32-bit words: a stream of little-endian words is the same bytes).
namespace tare::numerics {

/// Bytes that hold `count` codes.
constexpr int64_t packed_bytes(int64_t count, int bits) {
  return (count * bits + 7) / 8;
}

/// Code at bit position `bit`; bits in 1..16. Reads only the bytes that hold it.
inline uint32_t read_code(const std::byte* stream, int64_t bit, int bits) {
  const int64_t first = bit >> 3;
  const int shift = static_cast<int>(bit & 7);
  const int bytes = (shift + bits + 7) >> 3;
  uint32_t window = 0;
  for (int i = 0; i < bytes; ++i) window |= static_cast<uint32_t>(stream[first + i]) << (8 * i);
  return (window >> shift) & ((1u << bits) - 1u);
}

/// Stores a code at bit position `bit`; the other bits of the touched bytes are kept.
inline void write_code(std::byte* stream, int64_t bit, int bits, uint32_t code) {
  const int64_t first = bit >> 3;
  const int shift = static_cast<int>(bit & 7);
  const int bytes = (shift + bits + 7) >> 3;
  const uint32_t mask = ((1u << bits) - 1u) << shift;
  const uint32_t value = (code << shift) & mask;
  for (int i = 0; i < bytes; ++i) {
    const uint32_t byte_mask = (mask >> (8 * i)) & 0xffu;
    const uint32_t old = static_cast<uint32_t>(stream[first + i]);
    stream[first + i] = static_cast<std::byte>((old & ~byte_mask) | ((value >> (8 * i)) & byte_mask));
  }
}

/// Two's complement value of a code of width `bits`.
constexpr int32_t sign_extend(uint32_t code, int bits) {
  const uint32_t sign = 1u << (bits - 1);
  return static_cast<int32_t>(code ^ sign) - static_cast<int32_t>(sign);
}

}  // namespace tare::numerics
