#pragma once

#include <array>
#include <cstdint>

#include "base/buffer.h"

namespace tare::checkpoints {

/// Weights that GPU kernels of the Marlin family keep in tiles of 16 rows (k) by 64 columns (n): 128 words of eight
/// nibbles. Word 4i + j: t = i % 4, c = i / 4, j the quarter of the columns (docs/formats.md 8.6, 8.7).
enum class TileOrder {
  kMarlin,      // IST-DASLab: nibbles alternate k and k + 8
  kQqqGroup,    // QQQ with group scales
  kQqqChannel,  // QQQ with one scale a channel
};

/// words: int32 [K/16, 2N] -> nibbles in natural order, rows of N, [N, K/2]. K and N are multiples of 16 and 64.
Buffer untile_nibbles(const Buffer& words, int64_t n, int64_t k, TileOrder order);

/// Column that stands at position p of a run: of 64 for group scales, of 32 for channel scales.
constexpr int64_t group_scale_column(int64_t p) {
  return p / 64 * 64 + p % 64 / 8 + 8 * (p % 8);
}
constexpr int64_t channel_scale_column(int64_t p) {
  constexpr std::array<int64_t, 8> kOrder = {0, 1, 8, 9, 16, 17, 24, 25};
  return p / 32 * 32 + 2 * (p % 32 / 8) + kOrder[static_cast<size_t>(p % 8)];
}

/// Scales [rows, N] of element_bytes in stored column order -> [N, rows] in natural order.
Buffer unpermute_scales(const Buffer& scales, int64_t rows, int64_t n, int element_bytes, bool channel);

}  // namespace tare::checkpoints
