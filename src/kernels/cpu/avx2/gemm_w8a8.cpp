#include "kernels/cpu/avx2/int_epilogue.h"

namespace tare::kernels {
namespace {

/// u8 x s8 pairs would saturate in `vpmaddubsw` (255 * 127 * 2 > 32767), so both sides are widened: `vpmaddwd` of
/// 16-bit weights and activations is exact for every code, -128 included. One ymm of weights holds 4 rows x 4 k; its
/// accumulators hold two partial sums of each row, added at the end of the chunk.
///
/// Half a row block (8 rows) x T tokens. w: stride of a column block `w_stride`; x16: T rows; c: [T][64]. Ahead:
/// fetches half a line of memory from `ahead` on for each half line of its own.
template <int T, bool Ahead>
void tile(const uint8_t* w, int64_t w_stride, const int16_t* x, int64_t stride, int64_t blocks, int32_t* c, bool add,
          const uint8_t* ahead) {
  __m256i acc[T][2];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
  for (int64_t b = 0; b < blocks; ++b, w += w_stride, x += kColumnBlock, ahead += 4 * kLineBytes) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      if (Ahead && j % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(ahead + j / 2 * kLineBytes), _MM_HINT_T1);
      const auto* line = reinterpret_cast<const __m128i*>(w + j * kLineBytes);
      const __m256i w0 = _mm256_cvtepu8_epi16(_mm_loadu_si128(line));
      const __m256i w1 = _mm256_cvtepu8_epi16(_mm_loadu_si128(line + 1));
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        int64_t four;
        __builtin_memcpy(&four, x + t * stride + j * 4, 8);
        const __m256i tokens = _mm256_set1_epi64x(four);
        acc[t][0] = add32_in_order(acc[t][0], _mm256_madd_epi16(w0, tokens));
        acc[t][1] = add32_in_order(acc[t][1], _mm256_madd_epi16(w1, tokens));
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    // |r0a r0b r1a r1b|r2a r2b r3a r3b| and rows 4..7 -> rows 0 1 4 5 | 2 3 6 7 -> rows 0..7
    __m256i sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[t][0], acc[t][1]), 0xd8);
    if (add) sum = _mm256_add_epi32(sum, load256(c + t * kPanelRows));
    store256(c + t * kPanelRows, sum);
  }
}

using TileFn = void (*)(const uint8_t*, int64_t, const int16_t*, int64_t, int64_t, int32_t*, bool, const uint8_t*);
template <bool Ahead>
constexpr TileFn kTiles[] = {tile<1, Ahead>, tile<2, Ahead>, tile<3, Ahead>,
                             tile<4, Ahead>, tile<5, Ahead>, tile<6, Ahead>};
constexpr int64_t kAheadTokens = 12;  // up to here reading the weights takes longer than the products
constexpr int64_t kAheadBlocks = 4;   // column blocks of one step then: 8 KB of a panel

void panel_w8a8(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, float* out, int64_t out_stride,
                uint8_t* scratch) {
  auto* accumulators = reinterpret_cast<int32_t*>(scratch);
  const int64_t w_stride = panel.row_blocks * kExpandedBlock;
  const int64_t x_stride = shape.column_blocks * kColumnBlock;
  const bool few = tokens.end - tokens.begin <= kAheadTokens;
  const int64_t chunk = few ? kAheadBlocks : shape.chunk_blocks;
  for (int64_t first = 0; first < shape.column_blocks; first += chunk) {
    const int64_t rest = shape.column_blocks - first;
    const int64_t blocks = rest < chunk ? rest : chunk;
    for (int64_t m = tokens.begin; m < tokens.end;) {
      const int64_t count = next_tile(tokens.end - m);
      int32_t* c = accumulators + (m - tokens.begin) * kPanelRows;
      for (int half = 0; half * 8 < panel.rows; ++half) {
        const uint8_t* w = panel.codes + first * w_stride + half / 2 * kExpandedBlock + half % 2 * 32;
        const TileFn run = few && m == tokens.begin ? kTiles<true>[count - 1] : kTiles<false>[count - 1];
        const uint8_t* ahead = panel.codes + (first + blocks) * w_stride + half * blocks * 4 * kLineBytes;
        run(w, w_stride, tokens.x16 + m * x_stride + first * kColumnBlock, x_stride, blocks, c + half * 8, first > 0,
            ahead);
      }
      if (rest == blocks) write_outputs(shape, panel, tokens, m, count, c, out, out_stride);
      m += count;
    }
  }
}

void widen(const IntShape& shape, const int8_t* x, int64_t stride, int64_t begin, int64_t end, int16_t* x16) {
  const int64_t columns = shape.column_blocks * kColumnBlock;
  for (int64_t m = begin; m < end; ++m) {
    for (int64_t k = 0; k < columns; k += 16) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + m * stride + k));
      store256(x16 + m * columns + k, _mm256_cvtepi8_epi16(codes));
    }
  }
}

}  // namespace

const IntGemmOps kW8A8Avx2 = {.panel = panel_w8a8, .widen = widen};

}  // namespace tare::kernels
