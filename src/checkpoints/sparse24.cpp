#include "checkpoints/sparse24.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/checked.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;

namespace {

// Codes of the kept values, [K/2, N] row-major, out of tiles of 16 compressed rows by 64 columns.
std::vector<uint8_t> kept_codes(const Sparse24& w) {
  std::vector<uint8_t> out(static_cast<size_t>(w.k / 2 * w.n));
  constexpr std::array<int, 8> kOrder4 = {0, 2, 4, 6, 1, 3, 5, 7};
  constexpr std::array<int, 4> kOrder8 = {0, 2, 1, 3};
  constexpr std::array<int, 4> kRow = {0, 1, 8, 9};
  const int per_word = 32 / w.bits;
  const int words = 1024 / per_word;
  for (int64_t tile = 0; tile < w.k / 32; ++tile) {
    for (int64_t block = 0; block < w.n / 64; ++block) {
      for (int word_at_tile = 0; word_at_tile < words; ++word_at_tile) {
        const uint32_t word = word_at(w.codes.data, (tile * (w.n / 64) + block) * words + word_at_tile);
        const int index = w.bits == 4 ? word_at_tile : word_at_tile / 2;
        const int i = index / 4, j = index % 4;
        const int t = i % 4, c = i / 4;
        for (int p = 0; p < per_word; ++p) {
          const int e =
              w.bits == 4 ? kOrder4[static_cast<size_t>(p)] : 4 * (word_at_tile % 2) + kOrder8[static_cast<size_t>(p)];
          const int64_t row = tile * 16 + 2 * t + kRow[static_cast<size_t>(e & 3)];
          const int64_t column = block * 64 + 16 * (c / 2) + 8 * (c % 2) + 4 * (e >> 2) + j;
          out[static_cast<size_t>(row * w.n + column)] =
              static_cast<uint8_t>((word >> w.bits * p) & ((1u << w.bits) - 1));
        }
      }
    }
  }
  return out;
}

// Where the positions of row n, columns [16c, 16c + 16) stand among the scattered 16-bit words.
int64_t meta_offset(int64_t n, int64_t c, int64_t rows) {
  int64_t r = n / 64 * 64 + n % 2 * 2 + n % 8 / 4 + n % 32 % 4 / 2 * 32 + n % 64 / 8 * 4;
  int64_t column = c;
  if (r % 2 == 0 && column % 2 == 1) {
    ++r;
    --column;
  } else if (r % 2 == 1 && column % 2 == 0) {
    --r;
    ++column;
  }
  return column / 2 * 2 * rows + 2 * r + column % 2;
}

Result<tensor::QuantizedTensor> build(const Sparse24& w) {
  const std::vector<uint8_t> kept = kept_codes(w);
  tensor::QuantizedFields f{.n = w.n, .k = w.k, .kind = tensor::CodeKind::kUint, .bits = w.bits};
  const int64_t stride = w.k * w.bits / 8;
  const auto zero = static_cast<uint8_t>(1 << (w.bits - 1));
  // Dropped values decode to 0.
  std::vector<std::byte> codes(static_cast<size_t>(w.n * stride), std::byte(w.bits == 4 ? zero * 17 : zero));
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t c = 0; c < w.k / 16; ++c) {
      uint16_t positions;
      std::memcpy(&positions, w.meta.data.data() + meta_offset(n, c, w.n) * 2, 2);
      for (int q = 0; q < 4; ++q) {
        const int first = positions >> 4 * q & 3, second = positions >> (4 * q + 2) & 3;
        if (first >= second) {
          return invalid_input("mask of a 2:4 weight names no two positions in order",
                               {.where = fmt::format("{}[{}, {}..]", w.name, n, 16 * c + 4 * q),
                                .found = fmt::format("{} and {}", first, second)});
        }
        const int64_t from = (8 * c + 2 * q) * w.n + n;
        const int64_t column = 16 * c + 4 * q;
        numerics::write_code(codes.data() + n * stride, (column + first) * w.bits, w.bits,
                             kept[static_cast<size_t>(from)]);
        numerics::write_code(codes.data() + n * stride, (column + second) * w.bits, w.bits,
                             kept[static_cast<size_t>(from + w.n)]);
      }
    }
  }
  f.codes = Buffer::own(std::move(codes));
  f.z = static_cast<float>(zero);
  // The exporter permutes group scales, unless a group is as long as the compressed matrix is high.
  const int64_t groups = ceil_div(w.k, w.group);
  const bool permuted = w.group < w.k / 2;
  constexpr std::array<int64_t, 8> kScaleOrder = {0, 4, 1, 5, 2, 6, 3, 7};
  std::vector<uint16_t> scales(static_cast<size_t>(groups * w.n));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t p = 0; p < w.n; ++p) {
      const int64_t column = permuted ? p / 8 * 8 + kScaleOrder[static_cast<size_t>(p % 8)] : p;
      std::memcpy(&scales[static_cast<size_t>(column * groups + g)], w.scales.data.data() + (g * w.n + p) * 2, 2);
    }
  }
  TARE_ASSIGN(f.a, Grid::make(grid_type(w.scales.dtype), w.n, w.k, 1, w.group, Buffer::own(std::move(scales))));
  f.origin = {.format = "marlin-24", .bytes = w.bytes, .sparse_2_4 = true};
  return tensor::QuantizedTensor::make(std::move(f));
}

}  // namespace

Status read_sparse24(Parts& parts, std::string_view codes, std::string_view meta, std::string_view scales, int bits,
                     int64_t group_size, tensor::ModelWeights& out) {
  if (bits != 4 && bits != 8) return parts.contradiction(codes, "4 or 8 bits", fmt::format("{}", bits));
  Sparse24 w{.bits = bits, .name = parts.name("weight")};
  TARE_ASSIGN(const tensor::Shape meta_shape, parts.shape(meta, 2));
  w.k = meta_shape[0] * 32;
  w.n = meta_shape[1] / 2;
  w.group = group_size == -1 ? w.k : std::min(group_size, w.k);
  if (w.k == 0 || w.n == 0 || meta_shape[1] % 2 != 0 || w.n % 64 != 0 || w.group < 1 || w.k % w.group != 0) {
    return parts.contradiction(meta, fmt::format("[K/32, 2N], N in runs of 64, K in groups of {}", group_size),
                               tensor::shape_text(meta_shape));
  }
  TARE_ASSIGN(w.meta, parts.take(meta, {DType::kI16}, meta_shape));
  TARE_ASSIGN(w.codes, parts.take(codes, {DType::kI32}, {w.k / 32, w.n * 16 * bits / 32}));
  TARE_ASSIGN(w.scales, parts.take(scales, kHalfFloats, {w.k / w.group, w.n}));
  w.bytes = parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = bits, .group_size = w.group};
  spec.zero = tensor::ZeroKind::kConstant;
  spec.zero_constant = static_cast<float>(1 << (bits - 1));
  const tensor::Shape shape{w.n, w.k};
  const int64_t bytes = w.bytes;
  return add_quantized(out, parts.name("weight"), shape, spec, {}, bytes, [w = std::move(w)] { return build(w); });
}

}  // namespace tare::checkpoints
