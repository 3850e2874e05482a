#include "checkpoints/marlin_layout.h"

#include <cstring>
#include <vector>

namespace tare::checkpoints {

namespace {

struct Place {
  int k;  // inside the 16 rows
  int n;  // inside the 64 columns
};

Place place_of(TileOrder order, int i, int j, int nibble) {
  const int t = i % 4;
  const int c = i / 4;
  if (order == TileOrder::kMarlin) {
    const int k = 2 * t + (nibble % 2 == 1 ? 8 : 0) + (nibble >= 4 ? 1 : 0);
    const int n = 16 * j + c + (nibble % 4 >= 2 ? 8 : 0);
    return {k, n};
  }
  constexpr std::array<int, 8> kGroup = {0, 2, 4, 6, 1, 3, 5, 7};
  constexpr std::array<int, 8> kChannel = {4, 0, 5, 1, 6, 2, 7, 3};
  const int e = (order == TileOrder::kQqqGroup ? kGroup : kChannel)[static_cast<size_t>(nibble)];
  return {4 * t + (e & 3), 16 * j + c + 8 * (e >> 2)};
}

}  // namespace

Buffer untile_nibbles(const Buffer& words, int64_t n, int64_t k, TileOrder order) {
  std::vector<uint8_t> out(static_cast<size_t>(n * k / 2));
  std::array<Place, 1024> places;
  for (int w = 0; w < 128; ++w) {
    for (int nibble = 0; nibble < 8; ++nibble) {
      places[static_cast<size_t>(w * 8 + nibble)] = place_of(order, w / 4, w % 4, nibble);
    }
  }
  for (int64_t tile = 0; tile < k / 16; ++tile) {
    for (int64_t block = 0; block < n / 64; ++block) {
      const std::byte* from = words.data() + (tile * 2 * n + block * 128) * 4;
      for (int w = 0; w < 128; ++w) {
        uint32_t word;
        std::memcpy(&word, from + w * 4, 4);
        for (int nibble = 0; nibble < 8; ++nibble) {
          const Place& place = places[static_cast<size_t>(w * 8 + nibble)];
          const int64_t row = block * 64 + place.n;
          const int64_t column = tile * 16 + place.k;
          const auto code = static_cast<uint8_t>((word >> 4 * nibble) & 15);
          out[static_cast<size_t>((row * k + column) / 2)] |= static_cast<uint8_t>(code << 4 * (column % 2));
        }
      }
    }
  }
  return Buffer::own(std::move(out));
}

Buffer unpermute_scales(const Buffer& scales, int64_t rows, int64_t n, int element_bytes, bool channel) {
  std::vector<std::byte> out(scales.size());
  const auto size = static_cast<size_t>(element_bytes);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t p = 0; p < n; ++p) {
      const int64_t column = channel ? channel_scale_column(p) : group_scale_column(p);
      std::memcpy(out.data() + static_cast<size_t>(column * rows + row) * size,
                  scales.data() + static_cast<size_t>(row * n + p) * size, size);
    }
  }
  return Buffer::own(std::move(out));
}

}  // namespace tare::checkpoints
