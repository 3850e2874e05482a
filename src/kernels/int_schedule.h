#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/thread_pool.h"
#include "kernels/cpu/tasks.h"
#include "kernels/int_gemm.h"

/// How the drivers of the integer products cut rows into panels, panels and tokens into units of work, and memory into
/// arrays. None of it changes a result: every output is one accumulator chain over all of K.
namespace tare::kernels {

constexpr int64_t kChunkBlocks = 16;  // 512 columns of 64 rows are 32 KB of u8: most of an L1
constexpr int64_t kUnitTokens = 516;  // tokens of one unit of work; a multiple of both tile sizes
constexpr int64_t kFewTokens = 16;    // up to here memory is the bottleneck
constexpr int64_t kLeastTokens = 24;  // a unit is not cut below this

/// Arrays inside one allocation, in the order in which a product walks them.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    auto* at = reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kLineBytes);
    return at;
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* base_;
  int64_t used_ = 0;
};

/// Row blocks a panel: wide panels reuse activations, but every thread should find several of them.
inline int panel_row_blocks(int64_t row_blocks, int threads) {
  if (row_blocks >= 32 * threads) return 4;
  return row_blocks >= 4 * threads ? 2 : 1;
}

struct PanelPlace {
  int64_t block;  // first row block
  int64_t row_blocks;
  int64_t offset;  // of its codes
};

/// Panels of n rows; panel_bytes(row_blocks) is what one takes, total their sum.
template <class Bytes>
std::vector<PanelPlace> place_panels(int64_t n, int threads, Bytes panel_bytes, int64_t& total) {
  std::vector<PanelPlace> places;
  const int64_t row_blocks = ceil_div(n, kRowBlock);
  int64_t size = panel_row_blocks(row_blocks, threads);
  total = 0;
  for (int64_t block = 0; block < row_blocks; block += size) {
    while (block + size > row_blocks) size /= 2;
    places.push_back({block, size, total});
    total += panel_bytes(size);
  }
  return places;
}

/// First whole line of a workspace (which has kLineBytes to spare).
inline uint8_t* first_line(std::span<std::byte> workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  return reinterpret_cast<uint8_t*>((address + kLineBytes - 1) / kLineBytes * kLineBytes);
}

struct Split {
  int64_t ranges;  // of tokens
  int64_t tokens;  // in a range, at most
};

inline Split split_tokens(int64_t m, int64_t panels, int threads) {
  const int64_t wanted = std::min(ceil_div(4 * static_cast<int64_t>(threads), std::max<int64_t>(panels, 1)),
                                  std::max<int64_t>(m / kLeastTokens, 1));
  const int64_t ranges = std::max({ceil_div(m, kUnitTokens), wanted, int64_t{1}});
  const int64_t tokens = std::min(kUnitTokens, round_up(ceil_div(std::max<int64_t>(m, 1), ranges), 12));
  return {ceil_div(m, tokens), tokens};
}

/// Scratch of one thread for a product of m tokens.
inline int64_t thread_bytes(int64_t m) {
  return round_up(int_scratch_bytes(kChunkBlocks, std::min(round_up(m, 12), kUnitTokens)), kLineBytes);
}

/// body(thread, panel, begin, end) for every panel and range of tokens, handed out as threads come for them. Ranges of
/// tokens are the outer loop, so that a thread meets the same activations again. With few tokens each thread has a
/// share of neighbouring panels: what it prefetches past the end of one is then its own.
template <class Body>
void for_each_unit(ThreadPool& pool, int64_t m, int64_t panels, Body body) {
  const Split split = split_tokens(m, panels, pool.size());
  const int64_t units = split.ranges * panels;
  const auto work = [&](int64_t unit, int thread) {
    const int64_t begin = unit / panels * split.tokens;
    body(thread, unit % panels, begin, std::min(m, begin + split.tokens));
  };
  if (m <= kFewTokens) return for_each_neighbour(pool, units, work);
  for_each_task(pool, units, work);
}

}  // namespace tare::kernels
