#pragma once

#include <cstdint>

namespace tare::checkpoints {

/// Byte of code (n, k) in QServe's interleaved order over K columns, and the nibble's shift in it
/// (docs/formats.md 7.3).
constexpr int64_t qserve_byte(int64_t n, int64_t k, int64_t columns) {
  return (n / 32 * (columns / 32) + k / 32) * 512 + n % 8 * 64 + k % 16 / 4 * 16 + k % 32 / 16 * 8 + n % 16 / 8 * 4 +
         k % 4;
}
constexpr int qserve_shift(int64_t n) {
  return static_cast<int>(n % 32 / 16 * 4);
}

/// Channel whose second-level numbers stand at position p.
constexpr int64_t qserve_channel(int64_t p) {
  return p / 32 * 32 + p % 4 * 8 + p % 32 / 4;
}

}  // namespace tare::checkpoints
