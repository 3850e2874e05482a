#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/exp2_polynomial.h"

/// 16 floats in one register, and what attention needs of them. The AVX2 twin has the same names and, operation by
/// operation, the same results.
namespace tare::kernels {
namespace {

struct Lanes {
  using F = __m512;
  using Mask = __mmask16;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// b where either is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F x) { return _mm512_abs_ps(x); }

  /// Lanes first <= i < last.
  static Mask range(int64_t first, int64_t last) {
    const uint32_t below_last = last >= 16 ? 0xffffu : last <= 0 ? 0u : (1u << last) - 1u;
    const uint32_t below_first = first >= 16 ? 0xffffu : first <= 0 ? 0u : (1u << first) - 1u;
    return static_cast<Mask>(below_last & ~below_first);
  }
  static F select(Mask mask, F yes, F no) { return _mm512_mask_blend_ps(mask, no, yes); }
  static F keep(Mask mask, F x) { return _mm512_maskz_mov_ps(mask, x); }
  static bool any_not_finite(F x) { return _mm512_fpclass_ps_mask(x, 0x99) != 0; }

  /// 2^x for x <= 126, relative error below 2^-21; 0 below -125; NaN stays.
  static F exp2(F x) {
    const __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    const F whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_maskz_scalef_ps(in_range, exp2_fraction(_mm512_sub_ps(x, whole)), whole);
  }
  static F exp2_fraction(F f) {
    F p = set1(kExp2[5]);
    for (int i = 4; i >= 0; --i) p = fma(p, f, set1(kExp2[i]));
    return p;
  }

  static float sum(F x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static float largest(F x) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
  }

  static F load_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const std::byte* p) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  }
  static F load_e5m2(const std::byte* p) {
    // e5m2 is the upper half of an f16.
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
  }
  static F load_e4m3(const std::byte* p) {
    // |s|eeee|mmm| moved under the exponent of an f16 is the value / 2^8, subnormals included; only NaN is not there.
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(codes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
    const __m256i wide = _mm256_cvtepi8_epi16(codes);
    const __m256i half = _mm256_or_si256(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0x8000))),
                                         _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80)));
    const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
    return _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf("")));
  }

  /// Rounds to nearest even; NaN becomes the one that the f16 codes of this program have.
  static void store_f16(uint16_t* p, F x) {
    const __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i nan = _mm256_or_si256(_mm256_and_si256(half, _mm256_set1_epi16(static_cast<short>(0x8000))),
                                        _mm256_set1_epi16(0x7e00));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_mask_mov_epi16(half, is_nan, nan));
  }
  /// clamp(rne(x), 0, largest) as bytes, for |x| < 2^31.
  static void store_codes(uint8_t* p, F x, int32_t largest) {
    const __m512i q = _mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_setzero_si512());
    const __m512i codes = _mm512_min_epi32(q, _mm512_set1_epi32(largest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(codes));
  }

  using I = __m512i;
  static I int_zero() { return _mm512_setzero_si512(); }
  static float int_sum(I x) { return static_cast<float>(_mm512_reduce_add_epi32(x)); }
  static constexpr int kFloatTiles = 24;  // accumulators (rows x tiles) that registers hold: float products,
  static constexpr int kWideTiles = 12;   // wide and narrow integer products
  static constexpr int kNarrowTiles = 24;

  // Wide integer products. The left operand holds 15-bit integers q = 256 hi + lo with hi and lo signed bytes: 4 of
  // them take 8 bytes |4 hi|4 lo|. A unit of the right operand is 16 lanes x 4 codes, one byte each.
  static constexpr int64_t kWideUnitBytes = 64;

  /// Rounds x * factor for 16 values and stores them as left operand (32 bytes); adds them to `sum`.
  static I pack_wide(F x, F factor, std::byte* out, I sum) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
    const __m128i lo = _mm512_cvtepi32_epi8(q);
    const __m128i hi = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_sub_epi32(q, _mm512_cvtepi8_epi32(lo)), 8));
    __m128i* to = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(to, _mm_unpacklo_epi32(hi, lo));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi32(hi, lo));
    return _mm512_add_epi32(sum, q);
  }
  /// 64 bytes of 8-bit codes -> one unit.
  static void stage_wide(const std::byte* codes, std::byte* unit) {
    _mm512_storeu_si512(unit, _mm512_loadu_si512(codes));
  }

  template <int R, int T>
  struct WideSums {
    __m512i hi[R][T];
    __m512i lo[R][T];

    void clear() {
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) hi[r][t] = lo[r][t] = _mm512_setzero_si512();
      }
    }
    void step(const std::byte* left, int64_t left_stride, const std::byte* right, int64_t tile_stride) {
      __m512i codes[T];
      for (int t = 0; t < T; ++t) codes[t] = _mm512_loadu_si512(right + t * tile_stride);
      for (int r = 0; r < R; ++r) {
        int32_t pair[2];
        __builtin_memcpy(pair, left + r * left_stride, 8);
        const __m512i h = _mm512_set1_epi32(pair[0]);
        const __m512i l = _mm512_set1_epi32(pair[1]);
        for (int t = 0; t < T; ++t) {
          hi[r][t] = _mm512_dpbusd_epi32(hi[r][t], codes[t], h);
          lo[r][t] = _mm512_dpbusd_epi32(lo[r][t], codes[t], l);
        }
      }
    }
    F sum(int r, int t) const { return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(hi[r][t], 8), lo[r][t])); }
  };

  // Narrow integer products: 4-bit codes times bytes. The left operand has one byte a value; a unit of the right
  // operand is 16 lanes x 4 codes, one byte each.
  static constexpr int64_t kNarrowUnitBytes = 64;

  /// Rounds x * factor (within +-127) for 16 values to signed bytes; adds them to `sum`.
  static I pack_signed(F x, F factor, std::byte* out, I sum) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q));
    return _mm512_add_epi32(sum, q);
  }
  /// Rounds x * factor + offset (within 0..255.99) down for 16 values to unsigned bytes.
  static void pack_unsigned(F x, F factor, F offset, std::byte* out) {
    const __m512i q = _mm512_cvttps_epi32(_mm512_add_ps(_mm512_mul_ps(x, factor), offset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q));
  }
  /// 64 bytes of 4-bit codes -> the units of the low and of the high nibbles.
  static void stage_narrow(const std::byte* codes, std::byte* low, std::byte* high) {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i both = _mm512_loadu_si512(codes);
    _mm512_storeu_si512(low, _mm512_and_si512(both, mask));
    _mm512_storeu_si512(high, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
  }

  /// SignedLeft: left operand signed, else unsigned.
  template <int R, int T, bool SignedLeft>
  struct NarrowSums {
    __m512i acc[R][T];

    void clear() {
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) acc[r][t] = _mm512_setzero_si512();
      }
    }
    void step(const std::byte* left, int64_t left_stride, const std::byte* right, int64_t tile_stride) {
      __m512i codes[T];
      for (int t = 0; t < T; ++t) codes[t] = _mm512_loadu_si512(right + t * tile_stride);
      for (int r = 0; r < R; ++r) {
        int32_t four;
        __builtin_memcpy(&four, left + r * left_stride, 4);
        const __m512i a = _mm512_set1_epi32(four);
        for (int t = 0; t < T; ++t) {
          acc[r][t] =
              SignedLeft ? _mm512_dpbusd_epi32(acc[r][t], codes[t], a) : _mm512_dpbusd_epi32(acc[r][t], a, codes[t]);
        }
      }
    }
    void flush() {}
    F sum(int r, int t) const { return _mm512_cvtepi32_ps(acc[r][t]); }
  };

  static void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace tare::kernels
