#include "kernels/cpu/avx512vnni/int_tile.h"

namespace tare::kernels {
namespace {

constexpr int64_t kPackedBlock = 4 * kLineBytes;
constexpr int64_t kStreamTile = 12;    // tokens of one pass
constexpr int64_t kStreamTokens = 24;  // two passes, the second from the cache; beyond, expanding once is cheaper

/// One byte a row, 16 rows -> the byte in all four bytes of the row's lane.
inline __m512i spread_bytes(const uint8_t* rows) {
  const __m512i index =
      _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b, 0x0a0a0a0a, 0x09090909, 0x08080808,
                       0x07070707, 0x06060606, 0x05050505, 0x04040404, 0x03030303, 0x02020202, 0x01010101, 0x00000000);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows))), index);
}

/// Inner scales a of 16 rows as 16-bit lanes (a, a), and 128 + b as bytes.
struct Inner {
  __m512i scale;
  __m512i shift;

  Inner() = default;
  Inner(const uint8_t* scales, const uint8_t* minima)
      : scale(_mm512_and_si512(spread_bytes(scales), _mm512_set1_epi16(0xff))),
        shift(_mm512_xor_si512(spread_bytes(minima), _mm512_set1_epi8(-128))) {}

  /// The unsigned operand a*c + b + 128. The 16-bit products of a pair of codes need no carry between the bytes (a*c <=
  /// 255), and the sum of the bytes is itself a byte.
  __m512i apply(__m512i codes) const { return _mm512_add_epi8(_mm512_mullo_epi16(codes, scale), shift); }
};

/// Codes of k 0..3 (half 0) or 4..7 (half 1) of the 8 columns of a line.
inline __m512i half_line(const uint8_t* line, int half) {
  const __m512i bytes = _mm512_loadu_si512(line);
  return _mm512_and_si512(half == 0 ? bytes : _mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
}

/// One row a row block: codes of column block `block` in a panel.
inline const uint8_t* block_at(const IntShape& shape, const IntPanel& panel, int64_t block) {
  int64_t offset = block * panel.row_blocks * kPackedBlock;
  if (shape.groups != 0) offset += (block / shape.group_blocks + 1) * group_bytes(panel.row_blocks);
  return panel.codes + offset;
}

/// Upper (pass 0) or lower (pass 1) bytes of the 16-bit products a*c.
inline __m512i wide_product(__m512i codes, __m512i a, int pass) {
  const __m512i low_byte = _mm512_set1_epi16(0xff);
  const __m512i even = _mm512_mullo_epi16(_mm512_and_si512(codes, low_byte), a);
  const __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(codes, 8), a);
  if (pass == 0) return _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(low_byte, odd));
  return _mm512_or_si512(_mm512_and_si512(even, low_byte), _mm512_slli_epi16(odd, 8));
}

/// Expands 4-bit codes to the unsigned operand: c without inner scales, a*c + b + 128 with them. Groups whose values
/// leave s8 (QoQ makes none) keep b outside, as sum_g b_g * (sum of x over g); when even a*c leaves a byte, there are
/// two passes, first over the upper bytes of a*c, then over the lower ones.
struct Codes4 {
  static int passes(const IntShape& shape) { return shape.wide_scales ? 2 : 1; }
  static int32_t operand_zero(const IntShape& shape) { return shape.groups != 0 && shape.fits_s8 ? 128 : 0; }

  static const uint8_t* line_at(const IntShape& shape, const IntPanel& panel, int64_t block) {
    return block_at(shape, panel, block) - (shape.groups != 0 ? group_bytes(panel.row_blocks) : 0);
  }

  static const uint8_t* chunk(const IntShape& shape, const IntPanel& panel, int64_t first, int64_t blocks, int pass,
                              uint8_t* expanded) {
    const int rb = panel.row_blocks;
    uint8_t* to = expanded;
    for (int64_t b = first; b < first + blocks; ++b) {
      const uint8_t* codes = block_at(shape, panel, b);
      const uint8_t* scales = nullptr;
      if (shape.groups != 0)
        scales = block_at(shape, panel, b / shape.group_blocks * shape.group_blocks) - group_bytes(rb);
      for (int r = 0; r < rb; ++r, codes += kPackedBlock, to += kExpandedBlock) {
        Inner inner;
        if (scales) inner = Inner(scales + r * kRowBlock, scales + (rb + r) * kRowBlock);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            __m512i operand = half_line(codes + j * kLineBytes, half);
            if (scales && shape.fits_s8) {
              operand = inner.apply(operand);
            } else if (scales && shape.wide_scales) {
              operand = wide_product(operand, inner.scale, pass);
            } else if (scales) {
              operand = _mm512_mullo_epi16(operand, inner.scale);
            }
            _mm512_storeu_si512(to + (2 * j + half) * kLineBytes, operand);
          }
        }
      }
    }
    return expanded;
  }

  static bool start(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, int64_t m, int64_t count,
                    int pass, int32_t* c) {
    if (shape.groups == 0 || shape.fits_s8) return false;
    if (pass == 1) {
      for (int64_t i = 0; i < count * kPanelRows; i += kRowBlock) {
        _mm512_storeu_si512(c + i, _mm512_slli_epi32(_mm512_loadu_si512(c + i), 8));
      }
    }
    if (pass != passes(shape) - 1) return pass == 1;
    for (int r = 0; r < panel.row_blocks; ++r) {
      for (int64_t t = 0; t < count; ++t) {
        int32_t* to = c + t * kPanelRows + r * kRowBlock;
        __m512i acc = pass == 1 ? _mm512_loadu_si512(to) : _mm512_setzero_si512();
        const int16_t* sums = tokens.group_sums + (m + t) * shape.group_pairs * 2;
        for (int64_t g = 0; g < shape.groups; ++g) {
          const uint8_t* group = block_at(shape, panel, g * shape.group_blocks) - group_bytes(panel.row_blocks);
          const auto* b = reinterpret_cast<const __m128i*>(group + (panel.row_blocks + r) * kRowBlock);
          const __m512i product =
              _mm512_mullo_epi32(_mm512_cvtepi8_epi32(_mm_loadu_si128(b)), _mm512_set1_epi32(sums[g]));
          acc = _mm512_add_epi32(acc, product);
        }
        _mm512_storeu_si512(to, acc);
      }
    }
    return true;
  }
};

/// Few tokens: codes go from memory through registers into the products, never back to memory; bound by reading them.
/// Row blocks [first_row_block, first_row_block + R) of the panel; c: [T][64].
template <int T, int R, bool Scaled>
void stream(const IntShape& shape, const IntPanel& panel, int first_row_block, const int8_t* x, int64_t stride,
            int32_t* c) {
  __m512i acc[T][R];
#pragma GCC unroll 12
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_si512();
  }
  const int64_t rb = panel.row_blocks;
  const int64_t block_bytes = rb * kPackedBlock;
  const uint8_t* codes = panel.codes;
  const int64_t group = Scaled ? shape.group_blocks : shape.column_blocks;
  // The panel is walked several times, some row blocks or tokens each: its lines come while the panel before is
  // multiplied, evenly over all its walks.
  const int64_t panel_bytes = shape.column_blocks * block_bytes + shape.groups * group_bytes(rb);
  for (int64_t first = 0; first < shape.column_blocks; first += group) {
    Inner inner[R];
    if (Scaled) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        inner[r] = Inner(codes + (first_row_block + r) * kRowBlock, codes + (rb + first_row_block + r) * kRowBlock);
      }
      codes += group_bytes(rb);
    }
    const int64_t end = first + group < shape.column_blocks ? first + group : shape.column_blocks;
    for (int64_t b = first; b < end; ++b, x += kColumnBlock, codes += block_bytes) {
      const uint8_t* lines = codes + first_row_block * kPackedBlock;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          __m512i operand[R];
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            const uint8_t* line = lines + r * kPackedBlock + j * kLineBytes;
            if (half == 0) {
              if (T <= kPrefetchTokens) {
                fetch_ahead<true>(line);
              } else {
                _mm_prefetch(reinterpret_cast<const char*>(line + panel_bytes), _MM_HINT_T1);
              }
            }
            operand[r] = half_line(line, half);
            if (Scaled) operand[r] = inner[r].apply(operand[r]);
          }
#pragma GCC unroll 12
          for (int t = 0; t < T; ++t) {
            int32_t four;
            __builtin_memcpy(&four, x + t * stride + j * 8 + half * 4, 4);
            const __m512i token = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) acc[t][r] = _mm512_dpbusd_epi32(acc[t][r], operand[r], token);
          }
          // Line and operands are read again for the other half: registers are short, the first level cache is not.
          asm volatile("" : "+r"(lines));
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      _mm512_storeu_si512(c + t * kPanelRows + (first_row_block + r) * kRowBlock, acc[t][r]);
    }
  }
}

using StreamFn = void (*)(const IntShape&, const IntPanel&, int, const int8_t*, int64_t, int32_t*);
template <int R, bool Scaled>
constexpr StreamFn kStreams[] = {stream<1, R, Scaled>, stream<2, R, Scaled>, stream<3, R, Scaled>,
                                 stream<4, R, Scaled>};
template <int R, bool Scaled>
constexpr StreamFn kLongStreams[] = {stream<5, R, Scaled>,  stream<6, R, Scaled>, stream<7, R, Scaled>,
                                     stream<8, R, Scaled>,  stream<9, R, Scaled>, stream<10, R, Scaled>,
                                     stream<11, R, Scaled>, stream<12, R, Scaled>};

struct Streaming {
  StreamFn run;
  int row_blocks;  // taken at a time
};
template <bool Scaled>
Streaming streaming(int64_t count, int32_t rb) {
  if (count > 4)
    return rb == 1 ? Streaming{kLongStreams<1, Scaled>[count - 5], 1}
                   : Streaming{kLongStreams<2, Scaled>[count - 5], 2};
  if (rb == 4) return {kStreams<4, Scaled>[count - 1], 4};
  return rb == 2 ? Streaming{kStreams<2, Scaled>[count - 1], 2} : Streaming{kStreams<1, Scaled>[count - 1], 1};
}

void panel_w4a8(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, float* out, int64_t out_stride,
                uint8_t* scratch) {
  const bool scaled = shape.groups != 0;
  if (tokens.end - tokens.begin > kStreamTokens || (scaled && !shape.fits_s8)) {
    return run_panel<Codes4>(shape, panel, tokens, out, out_stride, scratch);
  }
  _mm_prefetch(reinterpret_cast<const char*>(panel.scale), _MM_HINT_T0);
  auto* c = reinterpret_cast<int32_t*>(scratch);
  for (int64_t m = tokens.begin; m < tokens.end;) {
    const int64_t count = next_tile(tokens.end - m, kStreamTile);
    const Streaming how = scaled ? streaming<true>(count, panel.row_blocks) : streaming<false>(count, panel.row_blocks);
    for (int r = 0; r < panel.row_blocks; r += how.row_blocks) {
      how.run(shape, panel, r, tokens.x + m * tokens.stride, tokens.stride, c);
    }
    write_outputs(shape, panel, tokens, m, count, c, Codes4::operand_zero(shape), out, out_stride);
    m += count;
  }
}

void group_sums(const IntShape& shape, const int8_t* x, int64_t stride, int64_t begin, int64_t end, int16_t* sums) {
  const __m256i ones = _mm256_set1_epi8(1);
  for (int64_t m = begin; m < end; ++m) {
    const int8_t* row = x + m * stride;
    int16_t* to = sums + m * shape.group_pairs * 2;
    int64_t g = 0;
    for (int64_t first = 0; first < shape.column_blocks; first += shape.group_blocks, ++g) {
      const int64_t rest = shape.column_blocks - first;
      const int64_t blocks = rest < shape.group_blocks ? rest : shape.group_blocks;
      __m256i acc = _mm256_setzero_si256();
      for (int64_t b = 0; b < blocks; ++b) {
        const int8_t* from = row + (first + b) * kColumnBlock;
        acc = _mm256_dpbusd_epi32(acc, ones, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
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

const IntGemmOps kW4A8Avx512Vnni = {.panel = panel_w4a8, .group_sums = group_sums, .sums_unless_s8 = true};

}  // namespace tare::kernels
