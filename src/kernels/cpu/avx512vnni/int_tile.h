#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/int_gemm.h"

/// Tiles of int32 accumulators with `vpdpbusd`: weights are the unsigned operand, one dword (4 consecutive k) of a
/// token is the signed, broadcast one. A zmm of accumulators holds 16 rows of one token.
/// For the .cpp files of this folder only; everything has internal linkage.
namespace tare::kernels {
namespace {

constexpr int64_t kExpandedBlock = 8 * kLineBytes;  // one row block x one column block of u8 codes

constexpr int kPrefetchTokens = 4;  // up to here a product waits for memory
constexpr int64_t kFarBytes = 8192;
constexpr int64_t kNearBytes = 4096;

/// Fetches what a stream of weights will read: from memory into the second-level cache, and half way into the first.
/// The hardware prefetchers alone reach two thirds of the bandwidth, one step 85 %, both 94 %
/// (docs/decisions/decode.md).
template <bool Near>
inline void fetch_ahead(const uint8_t* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line + kFarBytes), _MM_HINT_T1);
  if (Near) _mm_prefetch(reinterpret_cast<const char*>(line + kNearBytes), _MM_HINT_T0);
}

/// Lines that a tile fetches into L2 while it multiplies: its share of what the next chunk will read.
struct Ahead {
  const uint8_t* at = nullptr;
  int64_t lines = 0;
};

/// acc[t][r] += sum over the chunk. w: [blocks][R][8][64] u8; x: T rows; c: [T][64] int32.
/// 6 x 4 accumulators keep 24 of 32 registers busy, with 10 loads for 24 products.
template <int T, int R>
void tile(const uint8_t* w, const int8_t* x, int64_t stride, int64_t blocks, int32_t* c, bool add, Ahead ahead) {
  __m512i acc[T][R];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      acc[t][r] = add ? _mm512_loadu_si512(c + t * kPanelRows + r * kRowBlock) : _mm512_setzero_si512();
    }
  }
  // A few lines with each block: all at once they would wait for the fill buffers.
  const int64_t each = (ahead.lines + blocks - 1) / blocks;
  for (int64_t b = 0; b < blocks; ++b, w += R * kExpandedBlock, x += kColumnBlock) {
    for (int64_t i = 0; T > kPrefetchTokens && i < each && ahead.lines > 0;
         ++i, --ahead.lines, ahead.at += kLineBytes) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead.at), _MM_HINT_T1);
    }
    // Rows of tokens are too short, and too far apart, for the hardware to guess the next tile's.
    if (T > kPrefetchTokens && b % 2 == 0) {
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) _mm_prefetch(reinterpret_cast<const char*>(x + (T + t) * stride), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      __m512i weights[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const uint8_t* line = w + r * kExpandedBlock + j * kLineBytes;
        if (T <= kPrefetchTokens) fetch_ahead<true>(line);
        weights[r] = _mm512_loadu_si512(line);
      }
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        int32_t four;
        __builtin_memcpy(&four, x + t * stride + j * 4, 4);
        const __m512i tokens = _mm512_set1_epi32(four);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[t][r] = _mm512_dpbusd_epi32(acc[t][r], weights[r], tokens);
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) _mm512_storeu_si512(c + t * kPanelRows + r * kRowBlock, acc[t][r]);
  }
}

using TileFn = void (*)(const uint8_t*, const int8_t*, int64_t, int64_t, int32_t*, bool, Ahead);
constexpr TileFn kTiles4[] = {tile<1, 4>, tile<2, 4>, tile<3, 4>, tile<4, 4>, tile<5, 4>, tile<6, 4>};
constexpr TileFn kTiles2[] = {tile<1, 2>, tile<2, 2>, tile<3, 2>, tile<4, 2>,  tile<5, 2>,  tile<6, 2>,
                              tile<7, 2>, tile<8, 2>, tile<9, 2>, tile<10, 2>, tile<11, 2>, tile<12, 2>};
constexpr TileFn kTiles1[] = {tile<1, 1>, tile<2, 1>, tile<3, 1>, tile<4, 1>,  tile<5, 1>,  tile<6, 1>,
                              tile<7, 1>, tile<8, 1>, tile<9, 1>, tile<10, 1>, tile<11, 1>, tile<12, 1>};

struct Tiling {
  const TileFn* tiles;
  int64_t most;  // tokens of the largest tile
};

inline Tiling tiling(int32_t row_blocks) {
  return row_blocks == 4 ? Tiling{kTiles4, 6} : row_blocks == 2 ? Tiling{kTiles2, 12} : Tiling{kTiles1, 12};
}

/// Tokens of the next tile when `left` remain: as equal as possible, so that no tile has too few accumulators.
inline int64_t next_tile(int64_t left, int64_t most) {
  const int64_t tiles = (left + most - 1) / most;
  return (left + tiles - 1) / tiles;
}

/// y of `count` tokens from their accumulators, in the order of linear.h.
inline void write_outputs(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, int64_t token,
                          int64_t count, const int32_t* c, int32_t operand_zero, float* out, int64_t out_stride) {
  for (int r = 0; r < panel.row_blocks; ++r) {
    const int row = r * kRowBlock;
    const int left = panel.rows - row;
    if (left <= 0) break;
    const __mmask16 mask =
        left >= kRowBlock ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << left) - 1);
    const __m512 scale = _mm512_loadu_ps(panel.scale + row);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t m = token + t;
      __m512i acc = _mm512_loadu_si512(c + t * kPanelRows + row);
      // The operand was the weight + operand_zero.
      acc = _mm512_sub_epi32(acc, _mm512_set1_epi32(operand_zero * tokens.sum[m]));
      if (panel.zero) {
        const __m512i sum = _mm512_set1_epi32(tokens.sum[m]);
        acc = _mm512_sub_epi32(acc, _mm512_mullo_epi32(_mm512_loadu_si512(panel.zero + row), sum));
      }
      const int32_t zero = tokens.zero ? tokens.zero[m] : 0;
      if (tokens.zero) {
        const __m512i weight_sum = _mm512_loadu_si512(panel.weight_sum + row);
        acc = _mm512_sub_epi32(acc, _mm512_mullo_epi32(weight_sum, _mm512_set1_epi32(zero)));
      }
      const float sx = tokens.scale[m];
      __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(acc), _mm512_mul_ps(scale, _mm512_set1_ps(sx)));
      if (panel.min) {
        const auto sum = static_cast<int32_t>(tokens.sum[m] - static_cast<int64_t>(zero) * shape.k);
        const __m512 x = _mm512_set1_ps(sx * static_cast<float>(sum));
        y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_loadu_ps(panel.min + row), x));
      }
      if (panel.bias) y = _mm512_add_ps(y, _mm512_loadu_ps(panel.bias + row));
      _mm512_mask_storeu_ps(out + m * out_stride + row, mask, y);
    }
  }
}

/// The loop over one panel. Codes::chunk gives the u8 operand of column blocks [first, first + count), in place or in
/// scratch; Codes::start prepares the accumulators and says whether they hold something.
template <class Codes>
void run_panel(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, float* out, int64_t out_stride,
               uint8_t* scratch) {
  auto* accumulators = reinterpret_cast<int32_t*>(scratch);
  uint8_t* expanded = scratch + (tokens.end - tokens.begin) * kPanelRows * 4;
  const Tiling shapes = tiling(panel.row_blocks);
  const int passes = Codes::passes(shape);
  for (int pass = 0; pass < passes; ++pass) {
    for (int64_t first = 0; first < shape.column_blocks; first += shape.chunk_blocks) {
      const int64_t rest = shape.column_blocks - first;
      const int64_t blocks = rest < shape.chunk_blocks ? rest : shape.chunk_blocks;
      const uint8_t* w = Codes::chunk(shape, panel, first, blocks, pass, expanded);
      const bool last = pass == passes - 1 && first + blocks == shape.column_blocks;
      // The last chunk fetches the first one of the panel that follows in memory.
      const uint8_t* ahead = Codes::line_at(shape, panel, first + blocks);
      const int64_t tiles = (tokens.end - tokens.begin + shapes.most - 1) / shapes.most;
      const int64_t lines =
          (Codes::line_at(shape, panel, first + blocks) - Codes::line_at(shape, panel, first)) / kLineBytes;
      const int64_t share = (lines + tiles - 1) / tiles;
      for (int64_t m = tokens.begin; m < tokens.end;) {
        const int64_t count = next_tile(tokens.end - m, shapes.most);
        int32_t* c = accumulators + (m - tokens.begin) * kPanelRows;
        const bool add = first == 0 ? Codes::start(shape, panel, tokens, m, count, pass, c) : true;
        shapes.tiles[count - 1](w, tokens.x + m * tokens.stride + first * kColumnBlock, tokens.stride, blocks, c, add,
                                {ahead, share});
        ahead += share * kLineBytes;
        if (last) write_outputs(shape, panel, tokens, m, count, c, Codes::operand_zero(shape), out, out_stride);
        m += count;
      }
    }
  }
}

}  // namespace
}  // namespace tare::kernels
