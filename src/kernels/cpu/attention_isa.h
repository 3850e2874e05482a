#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_page.h"

/// The inner part of attention, one implementation per instruction set. Plain data only: files with their own compile
/// flags must not emit inline functions of shared headers.
namespace tare::kernels {

/// Keys of one split: the fixed length after which a softmax is closed and merged, so that threads can share one long
/// sequence without changing a bit.
inline constexpr int64_t kSplitTokens = 1024;
/// Keys of one step of the online softmax.
inline constexpr int64_t kKeyBlock = 128;
/// Tokens of one tile of a page (kv_page.h).
inline constexpr int64_t kTile = 16;

/// One side of the cache for one kv head.
struct AttendSide {
  KvType type = KvType::kF16;
  bool has_scale = false;
  bool has_zero = false;
  const std::byte* base = nullptr;  // block b: base + b * block_bytes
  int64_t block_bytes = 0;
  int64_t padded_dim = 0;
  int64_t tile_bytes = 0;  // codes of 16 tokens
  int64_t scale_offset = 0;
  int64_t zero_offset = 0;
  float static_scale = 1;
  float max_code = 0;  // integer forms
};

/// Some queries of one sequence against one kv head. Row r is query r / group, head r % group of the group.
struct AttendTask {
  AttendSide k;
  AttendSide v;
  const int32_t* blocks = nullptr;
  int64_t block_size = 0;
  int64_t head_dim = 0;
  int64_t group = 1;
  const float* q = nullptr;  // first query, first head of the group
  int64_t q_stride = 0;
  int64_t queries = 0;
  int64_t position = 0;  // of the first query
  float scale = 1;
  float soft_cap = 0;
  int64_t window = 0;
  /// Blocks of fewer than 16 tokens: copies the tile that starts at `token` into the layout of a 16-token block, at
  /// `page`. nullptr when block_size >= 16.
  void (*gather_tile)(const void* context, bool value_side, int64_t token, int64_t end, std::byte* page) = nullptr;
  const void* gather_context = nullptr;
};

/// The state of a row's softmax after some keys: |m, l, 14 unused|o [lanes(head_dim)]|, with m the largest score in
/// units of log2, l = sum 2^(score - m), o = sum 2^(score - m) v (without the static scale of v).
constexpr int64_t attend_lanes(int64_t head_dim) {
  return (head_dim + kTile - 1) / kTile * kTile;
}
constexpr int64_t state_floats(int64_t head_dim) {
  return kTile + attend_lanes(head_dim);
}

struct AttendIsa {
  /// Bytes of scratch for `rows` rows, 64-byte aligned.
  int64_t (*scratch_bytes)(int64_t rows, int64_t head_dim) = nullptr;
  /// Keys of splits [first, last) into `states` [rows][state_floats]. One split: its own state. More: merged in order,
  /// beginning with the empty state.
  void (*attend)(const AttendTask&, int64_t first_split, int64_t last_split, float* states,
                 std::byte* scratch) = nullptr;
  /// Merges `count` states, `stride` floats apart, in order, beginning with the empty state; writes o / l.
  void (*finish)(const float* states, int64_t count, int64_t stride, int64_t head_dim, float static_scale,
                 float* out) = nullptr;
};

extern const AttendIsa kAttendAvx2;
extern const AttendIsa kAttendAvx512Vnni;

}  // namespace tare::kernels
