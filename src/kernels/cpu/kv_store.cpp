#include "kernels/cpu/kv_store.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "kernels/cpu/attention_isa.h"
#include "numerics/mini_float.h"

namespace tare::kernels {

namespace {

constexpr int64_t kRun = 64;        // tokens of one task, at absolute positions: tokens of other runs share no bytes
constexpr int64_t kMostDim = 1024;  // wider vectors are written one by one

/// Codes of one token in channel order -> their places in a page of tiles.
void place_f16(const KvPageLayout& l, std::byte* side, int64_t t, const uint16_t* codes) {
  if (l.side == KvSide::kValue) {
    std::memcpy(side + t * l.head_dim * 2, codes, static_cast<size_t>(l.head_dim * 2));
    return;
  }
  std::byte* to = side + (t / kTile * l.head_dim * kTile + t % kTile) * 2;
  for (int64_t c = 0; c < l.head_dim; ++c) std::memcpy(to + c * kTile * 2, codes + c, 2);
}

void place_int8(const KvPageLayout& l, std::byte* side, int64_t t, const uint8_t* codes) {
  const int64_t d = l.padded_dim;
  if (l.side == KvSide::kKey) {
    std::byte* to = side + t / kTile * d * kTile + t % kTile * 4;
    for (int64_t c = 0; c < d; c += 4) std::memcpy(to + c * kTile, codes + c, 4);
    return;
  }
  std::byte* to = side + t / 4 * d * 4 + t % 4;
  for (int64_t c = 0; c < d; ++c) to[c * 4] = static_cast<std::byte>(codes[c]);
}

void place_int4(const KvPageLayout& l, std::byte* side, int64_t t, const uint8_t* codes) {
  const int64_t d = l.padded_dim;
  if (l.side == KvSide::kKey) {
    std::byte* to = side + t / kTile * (d / 8) * 64 + t % kTile * 4;
    for (int64_t c = 0; c < d; c += 8) {
      uint32_t low, high;
      std::memcpy(&low, codes + c, 4);
      std::memcpy(&high, codes + c + 4, 4);
      low |= high << 4;
      std::memcpy(to + c * 8, &low, 4);
    }
    return;
  }
  auto* to = reinterpret_cast<uint8_t*>(side) + t / 8 * d * 4 + t % 4;
  const int shift = t % 8 < 4 ? 0 : 4;
  const auto keep = static_cast<uint8_t>(0xf0 >> shift);
  for (int64_t c = 0; c < d; ++c) to[c * 4] = static_cast<uint8_t>((to[c * 4] & keep) | (codes[c] << shift));
}

/// As write_kv.
void write_row(const KvRow& row, const KvPageLayout& l, std::byte* side, int64_t t, const float* x,
               float static_scale) {
  const KvType type = l.form.type;
  const bool here = type == KvType::kF16 || is_integer(type);
  if (!here || l.block_size < kTile || l.padded_dim > kMostDim) return write_kv(l, side, t, x, static_scale);
  if (type == KvType::kF16) {
    uint16_t codes[kMostDim];
    row.to_f16(x, l.head_dim, codes);
    return place_f16(l, side, t, codes);
  }
  float lo, hi;
  // A smallest value of 0 may be -0, whose sign the stored zero keeps: which one it is depends on their order.
  if (!row.range(x, l.head_dim, &lo, &hi) || lo == 0) return write_kv(l, side, t, x, static_scale);
  const KvScale stored = kv_scale_of_range(l.form, lo, hi);
  const float scale = numerics::f16_to_f32(stored.scale);
  if (!(scale > 0)) return write_kv(l, side, t, x, static_scale);
  std::memcpy(side + l.scale_offset + 2 * t, &stored.scale, 2);
  std::memcpy(side + l.zero_offset + 2 * t, &stored.zero, 2);
  uint8_t codes[kMostDim];
  row.to_codes(x, l.head_dim, numerics::f16_to_f32(stored.zero), scale, kv_largest_code(l.form), codes);
  return type == KvType::kInt8 ? place_int8(l, side, t, codes) : place_int4(l, side, t, codes);
}

}  // namespace

void store_kv(const KvRow& row, const KvLayer& layer, std::span<const KvAppend> appends, ThreadPool& pool) {
  int64_t runs = 0;  // of the longest append
  for (const KvAppend& a : appends) {
    if (a.count > 0) runs = std::max(runs, (a.position + a.count - 1) / kRun - a.position / kRun + 1);
  }
  const int64_t heads = layer.kv_heads;
  pool.parallel_for(static_cast<int64_t>(appends.size()) * heads * runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const KvAppend& a = appends[static_cast<size_t>(i / (heads * runs))];
      const int64_t head = i / runs % heads;
      const int64_t from = (a.position / kRun + i % runs) * kRun;
      const int64_t last = std::min(a.position + a.count, from + kRun);
      for (int64_t p = std::max(a.position, from); p < last; ++p) {
        const int64_t t = p - a.position;
        const int64_t block = a.blocks[p / layer.k.block_size];
        const int64_t slot = p % layer.k.block_size;
        write_row(row, layer.k, layer.k_side(block, head), slot, a.k + t * a.k_stride + head * layer.k.head_dim,
                  layer.k_static_scale(head));
        write_row(row, layer.v, layer.v_side(block, head), slot, a.v + t * a.v_stride + head * layer.v.head_dim,
                  layer.v_static_scale(head));
      }
    }
  });
}

}  // namespace tare::kernels
