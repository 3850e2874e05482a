#include "kernels/cpu/avx512vnni/int_tile.h"

namespace tare::kernels {
namespace {

constexpr int64_t kPackedBlock = 4 * kLineBytes;

/// Row scales as s16 pairs: 16 u8 -> 16 x (a, a).
inline __m512i scale_pairs(const uint8_t* a) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  return _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
}

/// Expands 4-bit codes to the unsigned operand: c, or a*c where there are inner scales. The product of a pair of codes
/// in a 16-bit lane with a needs no carry between the bytes as long as 15*a <= 255. Larger inner scales take two
/// passes, first over the upper bytes of a*c, then over the lower ones.
/// The additive terms of the groups never enter the operand: sum_g b_g * (sum of x over g) starts the accumulator.
struct Codes4 {
  static int passes(const IntShape& shape) { return shape.wide_scales ? 2 : 1; }

  static const uint8_t* chunk(const IntShape& shape, const IntPanel& panel, int64_t first, int64_t blocks, int pass,
                              uint8_t* expanded) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const int rb = panel.row_blocks;
    const uint8_t* codes = panel.codes + first * rb * kPackedBlock;
    uint8_t* to = expanded;
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* scales =
          shape.group_blocks ? panel.inner_scale + (first + b) / shape.group_blocks * rb * kRowBlock : nullptr;
      for (int r = 0; r < rb; ++r, codes += kPackedBlock, to += kExpandedBlock) {
        const __m512i a = scales ? scale_pairs(scales + r * kRowBlock) : _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const __m512i line = _mm512_loadu_si512(codes + j * kLineBytes);
          _mm_prefetch(reinterpret_cast<const char*>(codes + j * kLineBytes + 4096), _MM_HINT_T0);
          __m512i low = _mm512_and_si512(line, nibble);
          __m512i high = _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble);
          if (scales) {
            low = shape.wide_scales ? wide_product(low, a, pass) : _mm512_mullo_epi16(low, a);
            high = shape.wide_scales ? wide_product(high, a, pass) : _mm512_mullo_epi16(high, a);
          }
          _mm512_storeu_si512(to + 2 * j * kLineBytes, low);
          _mm512_storeu_si512(to + (2 * j + 1) * kLineBytes, high);
        }
      }
    }
    return expanded;
  }

  /// Upper (pass 0) or lower (pass 1) bytes of the 16-bit products a*c.
  static __m512i wide_product(__m512i codes, __m512i a, int pass) {
    const __m512i low_byte = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_mullo_epi16(_mm512_and_si512(codes, low_byte), a);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(codes, 8), a);
    if (pass == 0) return _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(low_byte, odd));
    return _mm512_or_si512(_mm512_and_si512(even, low_byte), _mm512_slli_epi16(odd, 8));
  }

  static bool start(const IntShape& shape, const IntPanel& panel, const IntTokens& tokens, int64_t m, int64_t count,
                    int pass, int32_t* c) {
    const bool last_pass = pass == passes(shape) - 1;
    if (pass == 1) {
      for (int64_t i = 0; i < count * kPanelRows; i += kRowBlock) {
        _mm512_storeu_si512(c + i, _mm512_slli_epi32(_mm512_loadu_si512(c + i), 8));
      }
    }
    if (!panel.inner_min || !last_pass) return pass == 1;
    for (int r = 0; r < panel.row_blocks; ++r) {
      for (int64_t t = 0; t < count; ++t) {
        int32_t* to = c + t * kPanelRows + r * kRowBlock;
        __m512i acc = pass == 1 ? _mm512_loadu_si512(to) : _mm512_setzero_si512();
        const int16_t* sums = tokens.group_sums + (m + t) * shape.group_pairs * 2;
        const int8_t* min = panel.inner_min + r * kRowBlock * 2;
        for (int64_t p = 0; p < shape.group_pairs; ++p, min += panel.row_blocks * kRowBlock * 2) {
          int32_t pair;
          __builtin_memcpy(&pair, sums + p * 2, 4);
          const __m512i b = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(min)));
          acc = _mm512_dpwssd_epi32(acc, b, _mm512_set1_epi32(pair));
        }
        _mm512_storeu_si512(to, acc);
      }
    }
    return true;
  }
};

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

const IntGemmOps kW4A8Avx512Vnni = {.panel = run_panel<Codes4>, .group_sums = group_sums};

}  // namespace tare::kernels
