#include "kernels/cpu/avx2/int_epilogue.h"

namespace tare::kernels {
namespace {

constexpr int64_t kPackedBlock = 4 * kLineBytes;

/// `vpmaddubsw` of 4-bit codes and s8 is exact: a pair is at most 2 * 15 * 128 = 3840, and 8 of them (one column block)
/// still fit s16. `vpmaddwd` then widens to int32, with the inner scale instead of ones: the group scale is free.
///
/// One row block x T tokens over one chunk. w: [blocks] of 512 bytes, w_stride apart; scales: u8 of the 16
/// rows for each group, scale_stride apart; none with group_blocks == 0; c: [T][64].
template <int T>
void tile(const uint8_t* w, int64_t w_stride, const int8_t* x, int64_t stride, int64_t blocks, const uint8_t* scales,
          int64_t scale_stride, int64_t group_blocks, int32_t* c) {
  int64_t left = group_blocks;  // column blocks of the current group
  for (int64_t b = 0; b < blocks; ++b, w += w_stride, x += kColumnBlock) {
    __m256i acc[T][2];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i w0 = load256(w + j * kLineBytes);
      const __m256i w1 = load256(w + j * kLineBytes + 32);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        int32_t four;
        __builtin_memcpy(&four, x + t * stride + j * 4, 4);
        const __m256i tokens = _mm256_set1_epi32(four);
        const __m256i p0 = _mm256_maddubs_epi16(w0, tokens);
        const __m256i p1 = _mm256_maddubs_epi16(w1, tokens);
        acc[t][0] = j == 0 ? p0 : add16_in_order(acc[t][0], p0);
        acc[t][1] = j == 0 ? p1 : add16_in_order(acc[t][1], p1);
      }
    }
    __m256i a0 = _mm256_set1_epi16(1);
    __m256i a1 = a0;
    if (group_blocks != 0) {
      a0 = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
      a1 = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 8)));
      a0 = _mm256_or_si256(a0, _mm256_slli_epi32(a0, 16));
      a1 = _mm256_or_si256(a1, _mm256_slli_epi32(a1, 16));
      if (--left == 0) {
        scales += scale_stride;
        left = group_blocks;
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      int32_t* to = c + t * kPanelRows;
      store256(to, _mm256_add_epi32(load256(to), _mm256_madd_epi16(acc[t][0], a0)));
      store256(to + 8, _mm256_add_epi32(load256(to + 8), _mm256_madd_epi16(acc[t][1], a1)));
    }
  }
}

using TileFn = void (*)(const uint8_t*, int64_t, const int8_t*, int64_t, int64_t, const uint8_t*, int64_t, int64_t,
                        int32_t*);
constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};

inline const uint8_t* block_at(const IntShape& shape, const IntPanel& panel, int64_t block) {
  int64_t offset = block * panel.row_blocks * kPackedBlock;
  if (shape.groups != 0) offset += (block / shape.group_blocks + 1) * group_bytes(panel.row_blocks);
  return panel.codes + offset;
}

constexpr int64_t kFarBytes = 8192;    // from memory into the second-level cache,
constexpr int64_t kNearBytes = 4096;   // and half way into the first
constexpr int64_t kStreamTile = 4;     // tokens of one pass
constexpr int64_t kStreamTokens = 12;  // three passes, the later ones from the cache

/// Few tokens: codes go from memory through registers into the products, never back to memory; bound by reading them.
/// c: [T][64], holds the sums to add to.
template <int T, bool Scaled>
void stream(const IntShape& shape, const IntPanel& panel, const int8_t* x, int64_t stride, int32_t* c) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const int64_t rb = panel.row_blocks;
  const uint8_t* codes = panel.codes;
  const int64_t group = Scaled ? shape.group_blocks : shape.column_blocks;
  __m256i scales[kPanelRowBlocks][2];  // of 16 rows, as pairs of 16-bit numbers
  for (int64_t first = 0; first < shape.column_blocks; first += group) {
    for (int64_t r = 0; r < rb; ++r) {
      for (int h = 0; h < 2; ++h) {
        __m256i a = _mm256_set1_epi16(1);
        if (Scaled) {
          a = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + r * kRowBlock + h * 8)));
          a = _mm256_or_si256(a, _mm256_slli_epi32(a, 16));
        }
        scales[r][h] = a;
      }
    }
    if (Scaled) codes += group_bytes(rb);
    const int64_t end = first + group < shape.column_blocks ? first + group : shape.column_blocks;
    for (int64_t b = first; b < end; ++b, x += kColumnBlock) {
      for (int64_t r = 0; r < rb; ++r, codes += kPackedBlock) {
        __m256i acc[T][2];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const uint8_t* line = codes + j * kLineBytes;
          _mm_prefetch(reinterpret_cast<const char*>(line + kFarBytes), _MM_HINT_T1);
          _mm_prefetch(reinterpret_cast<const char*>(line + kNearBytes), _MM_HINT_T0);
          const __m256i v0 = load256(line);
          const __m256i v1 = load256(line + 32);
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const __m256i w0 = _mm256_and_si256(half == 0 ? v0 : _mm256_srli_epi16(v0, 4), nibble);
            const __m256i w1 = _mm256_and_si256(half == 0 ? v1 : _mm256_srli_epi16(v1, 4), nibble);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
              int32_t four;
              __builtin_memcpy(&four, x + t * stride + j * 8 + half * 4, 4);
              const __m256i token = _mm256_set1_epi32(four);
              const __m256i p0 = _mm256_maddubs_epi16(w0, token);
              const __m256i p1 = _mm256_maddubs_epi16(w1, token);
              const bool begin = j == 0 && half == 0;
              acc[t][0] = begin ? p0 : add16_in_order(acc[t][0], p0);
              acc[t][1] = begin ? p1 : add16_in_order(acc[t][1], p1);
            }
          }
        }
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          int32_t* to = c + t * kPanelRows + r * kRowBlock;
          store256(to, _mm256_add_epi32(load256(to), _mm256_madd_epi16(acc[t][0], scales[r][0])));
          store256(to + 8, _mm256_add_epi32(load256(to + 8), _mm256_madd_epi16(acc[t][1], scales[r][1])));
        }
      }
    }
  }
}

using StreamFn = void (*)(const IntShape&, const IntPanel&, const int8_t*, int64_t, int32_t*);
template <bool Scaled>
constexpr StreamFn kStreams[] = {stream<1, Scaled>, stream<2, Scaled>, stream<3, Scaled>, stream<4, Scaled>};

/// Splits the nibbles of a chunk: [blocks][row blocks][8][64] u8.
void expand(const uint8_t* codes, int64_t lines, uint8_t* to) {
  const __m256i nibble = _mm256_set1_epi8(15);
  for (int64_t i = 0; i < lines; ++i, codes += kLineBytes, to += 2 * kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + 4096), _MM_HINT_T0);
    const __m256i v0 = load256(codes);
    const __m256i v1 = load256(codes + 32);
    store256(to, _mm256_and_si256(v0, nibble));
    store256(to + 32, _mm256_and_si256(v1, nibble));
    store256(to + 64, _mm256_and_si256(_mm256_srli_epi16(v0, 4), nibble));
    store256(to + 96, _mm256_and_si256(_mm256_srli_epi16(v1, 4), nibble));
  }
}

/// The accumulators of one tile before the first chunk: sum_g b_g * (sum of x over g), or 0.
void start(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, int64_t m, int64_t count,
           int32_t* c) {
  for (int row = 0; row < panel.row_blocks * kRowBlock; row += 8) {
    for (int64_t t = 0; t < count; ++t) {
      __m256i acc = _mm256_setzero_si256();
      if (shape.groups != 0) {
        const int16_t* sums = tokens.group_sums + (m + t) * shape.group_pairs * 2;
        const int64_t offset = panel.row_blocks * kRowBlock + row - group_bytes(panel.row_blocks);
        for (int64_t g = 0; g < shape.groups; g += 2) {
          // Rows x (b of this group, b of the next), against the two sums of the token.
          const int64_t next = g + 1 < shape.groups ? g + 1 : g;
          const auto* b0 = reinterpret_cast<const __m128i*>(block_at(shape, panel, g * shape.group_blocks) + offset);
          const auto* b1 = reinterpret_cast<const __m128i*>(block_at(shape, panel, next * shape.group_blocks) + offset);
          int32_t pair;
          __builtin_memcpy(&pair, sums + g, 4);
          const __m256i b = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64(b0), _mm_loadl_epi64(b1)));
          acc = _mm256_add_epi32(acc, _mm256_madd_epi16(b, _mm256_set1_epi32(pair)));
        }
      }
      store256(c + t * kPanelRows + row, acc);
    }
  }
}

void panel_w4a8(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, float* out, int64_t out_stride,
                uint8_t* scratch) {
  auto* accumulators = reinterpret_cast<int32_t*>(scratch);
  if (tokens.end - tokens.begin <= kStreamTokens) {
    for (int64_t m = tokens.begin; m < tokens.end;) {
      const int64_t left = tokens.end - m;
      const int64_t passes = (left + kStreamTile - 1) / kStreamTile;
      const int64_t count = (left + passes - 1) / passes;
      start(shape, panel, tokens, m, count, accumulators);
      const StreamFn run = shape.groups != 0 ? kStreams<true>[count - 1] : kStreams<false>[count - 1];
      run(shape, panel, tokens.x + m * tokens.stride, tokens.stride, accumulators);
      write_outputs(shape, panel, tokens, m, count, accumulators, out, out_stride);
      m += count;
    }
    return;
  }
  uint8_t* expanded = scratch + (tokens.end - tokens.begin) * kPanelRows * 4;
  const int64_t rb = panel.row_blocks;
  for (int64_t first = 0; first < shape.column_blocks; first += shape.chunk_blocks) {
    const int64_t rest = shape.column_blocks - first;
    const int64_t blocks = rest < shape.chunk_blocks ? rest : shape.chunk_blocks;
    const int64_t run = shape.groups != 0 ? shape.group_blocks : blocks;
    for (int64_t b = 0; b < blocks; b += run) {
      const int64_t lines = (blocks - b < run ? blocks - b : run) * rb * 4;
      expand(block_at(shape, panel, first + b), lines, expanded + b * rb * kExpandedBlock);
    }
    for (int64_t m = tokens.begin; m < tokens.end;) {
      const int64_t count = next_tile(tokens.end - m);
      int32_t* c = accumulators + (m - tokens.begin) * kPanelRows;
      if (first == 0) start(shape, panel, tokens, m, count, c);
      for (int64_t r = 0; r < rb; ++r) {
        const uint8_t* scales = block_at(shape, panel, first) - group_bytes(rb) + r * kRowBlock;
        const int64_t scale_stride = shape.group_blocks * rb * kPackedBlock + group_bytes(rb);
        kTiles[count - 1](expanded + r * kExpandedBlock, rb * kExpandedBlock,
                          tokens.x + m * tokens.stride + first * kColumnBlock, tokens.stride, blocks, scales,
                          scale_stride, shape.group_blocks, c + r * kRowBlock);
      }
      if (rest == blocks) write_outputs(shape, panel, tokens, m, count, c, out, out_stride);
      m += count;
    }
  }
}

void group_sums(const IntShape& shape, const int8_t* x, int64_t stride, int64_t begin, int64_t end, int16_t* sums) {
  const __m256i ones8 = _mm256_set1_epi8(1);
  const __m256i ones16 = _mm256_set1_epi16(1);
  for (int64_t m = begin; m < end; ++m) {
    const int8_t* row = x + m * stride;
    int16_t* to = sums + m * shape.group_pairs * 2;
    int64_t g = 0;
    for (int64_t first = 0; first < shape.column_blocks; first += shape.group_blocks, ++g) {
      const int64_t rest = shape.column_blocks - first;
      const int64_t blocks = rest < shape.group_blocks ? rest : shape.group_blocks;
      __m256i acc = _mm256_setzero_si256();
      for (int64_t b = 0; b < blocks; ++b) {
        const __m256i pairs = _mm256_maddubs_epi16(ones8, load256(row + (first + b) * kColumnBlock));
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones16));
      }
      __m128i half = _mm_add_epi32(_mm256_castsi256_si128(acc), _mm256_extracti128_si256(acc, 1));
      half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
      half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
      to[g] = static_cast<int16_t>(_mm_cvtsi128_si32(half));
    }
    if (g % 2 != 0) to[g] = 0;
  }
}

}  // namespace

const IntGemmOps kW4A8Avx2 = {.panel = panel_w4a8, .group_sums = group_sums};

}  // namespace tare::kernels
