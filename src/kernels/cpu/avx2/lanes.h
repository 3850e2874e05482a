#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/exp2_polynomial.h"

/// 16 floats in two registers, and what attention needs of them. The AVX-512 twin has the same names and, operation by
/// operation, the same results.
namespace tare::kernels {
namespace {

struct Lanes {
  struct F {
    __m256 a;
    __m256 b;
  };
  struct Mask {
    __m256 a;
    __m256 b;
  };

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  /// y where either is NaN.
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }

  /// Lanes first <= i < last.
  static Mask range(int64_t first, int64_t last) {
    const auto clamp = [](int64_t x) { return static_cast<int>(x < 0 ? 0 : x > 16 ? 16 : x); };
    const __m256i from = _mm256_set1_epi32(clamp(first));
    const __m256i to = _mm256_set1_epi32(clamp(last));
    const auto half = [&](__m256i lane) {
      return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(from, lane), _mm256_cmpgt_epi32(to, lane)));
    };
    return {half(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), half(_mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
  }
  static F select(Mask m, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
  }
  static F keep(Mask m, F x) { return {_mm256_and_ps(m.a, x.a), _mm256_and_ps(m.b, x.b)}; }
  static bool any_not_finite(F x) {
    const F size = abs(x);
    const __m256 inf = _mm256_set1_ps(__builtin_inff());
    return _mm256_movemask_ps(
               _mm256_or_ps(_mm256_cmp_ps(size.a, inf, _CMP_NLT_UQ), _mm256_cmp_ps(size.b, inf, _CMP_NLT_UQ))) != 0;
  }

  /// 2^x for x <= 126, relative error below 2^-21; 0 below -125; NaN stays.
  static F exp2(F x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const F whole = {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
    const F p = exp2_fraction(sub(x, whole));
    const auto half = [](__m256 value, __m256 n, __m256 arg) {
      const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(value), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
      return _mm256_and_ps(_mm256_castsi256_ps(bits), _mm256_cmp_ps(arg, _mm256_set1_ps(-125.0f), _CMP_NLT_UQ));
    };
    return {half(p.a, whole.a, x.a), half(p.b, whole.b, x.b)};
  }
  static F exp2_fraction(F f) {
    F p = set1(kExp2[5]);
    for (int i = 4; i >= 0; --i) p = fma(p, f, set1(kExp2[i]));
    return p;
  }

  static float sum(F x) {
    const __m256 half = _mm256_add_ps(x.a, x.b);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static float largest(F x) {
    const __m256 half = _mm256_max_ps(x.a, x.b);
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
  }

  static __m128i bytes(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static F load_f16(const std::byte* p) { return {_mm256_cvtph_ps(bytes(p)), _mm256_cvtph_ps(bytes(p + 16))}; }
  static F load_bf16(const std::byte* p) {
    const auto half = [](__m128i codes) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
    };
    return {half(bytes(p)), half(bytes(p + 16))};
  }
  static F from_halves(__m256i halves) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  static F load_e5m2(const std::byte* p) {
    // e5m2 is the upper half of an f16.
    return from_halves(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes(p)), 8));
  }
  static F load_e4m3(const std::byte* p) {
    // |s|eeee|mmm| moved under the exponent of an f16 is the value / 2^8, subnormals included; only NaN is not there.
    const __m256i wide = _mm256_cvtepi8_epi16(bytes(p));
    const __m256i low = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
    const __m256i half = _mm256_or_si256(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0x8000))),
                                         _mm256_slli_epi16(low, 7));
    // An f16 NaN where the code is one: all exponent bits set.
    const __m256i nan = _mm256_cmpeq_epi16(low, _mm256_set1_epi16(0x7f));
    const __m256i fixed = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    return mul(from_halves(fixed), set1(256.0f));
  }

  /// Rounds to nearest even; NaN becomes the one that the f16 codes of this program have.
  static void store_f16(uint16_t* p, F x) {
    const auto eight = [](__m256 v) {
      const __m128i half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
      const __m128i mask = _mm_packs_epi32(_mm256_castsi256_si128(is_nan), _mm256_extracti128_si256(is_nan, 1));
      const __m128i nan =
          _mm_or_si128(_mm_and_si128(half, _mm_set1_epi16(static_cast<short>(0x8000))), _mm_set1_epi16(0x7e00));
      return _mm_blendv_epi8(half, nan, mask);
    };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), eight(x.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), eight(x.b));
  }
  /// clamp(rne(x), 0, largest) as bytes, for |x| < 2^31.
  static void store_codes(uint8_t* p, F x, int32_t largest) {
    const auto eight = [&](__m256 v) {
      const __m256i q = _mm256_max_epi32(_mm256_cvtps_epi32(v), _mm256_setzero_si256());
      return _mm256_min_epi32(q, _mm256_set1_epi32(largest));
    };
    store_bytes(eight(x.a), eight(x.b), reinterpret_cast<std::byte*>(p));
  }

  struct I {
    __m256i a;
    __m256i b;
  };
  static I int_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static float int_sum(I x) {
    const __m256i s = _mm256_add_epi32(x.a, x.b);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return static_cast<float>(_mm_cvtsi128_si32(t));
  }
  static __m256i load_int(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static constexpr int kFloatTiles = 4;  // accumulators (rows x tiles, two registers each) that registers hold
  static constexpr int kWideTiles = 4;
  static constexpr int kNarrowTiles = 4;

  // Wide integer products. The left operand holds 16-bit integers, 4 of them to a step. A unit of the right operand is
  // 16 lanes x 4 codes, widened to 16 bits, as two vectors of pairs: |codes 0 1 of lanes 0..15|codes 2 3 of lanes
  // 0..15|.
  static constexpr int64_t kWideUnitBytes = 128;

  static __m256i rounded(__m256 x, __m256 factor) { return _mm256_cvtps_epi32(_mm256_mul_ps(x, factor)); }

  /// Rounds x * factor for 16 values and stores them as left operand (32 bytes); adds them to `sum`.
  static I pack_wide(F x, F factor, std::byte* out, I sum) {
    const __m256i a = rounded(x.a, factor.a);
    const __m256i b = rounded(x.b, factor.b);
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), both);
    return {_mm256_add_epi32(sum.a, a), _mm256_add_epi32(sum.b, b)};
  }
  /// 64 bytes of 8-bit codes -> one unit.
  static void stage_wide(const std::byte* codes, std::byte* unit) {
    const __m256i first = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1, -1, 4,
                                           -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    const __m256i second = _mm256_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2, -1, 3, -1, 6,
                                            -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    __m256i* to = reinterpret_cast<__m256i*>(unit);
    for (int half = 0; half < 2; ++half) {
      const __m256i bytes32 = load_int(codes + 32 * half);
      _mm256_storeu_si256(to + half, _mm256_shuffle_epi8(bytes32, first));
      _mm256_storeu_si256(to + 2 + half, _mm256_shuffle_epi8(bytes32, second));
    }
  }

  template <int R, int T>
  struct WideSums {
    I acc[R][T];

    void clear() {
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) acc[r][t] = int_zero();
      }
    }
    void step(const std::byte* left, int64_t left_stride, const std::byte* right, int64_t tile_stride) {
      for (int pair = 0; pair < 2; ++pair) {
        I codes[T];
        for (int t = 0; t < T; ++t) {
          const std::byte* unit = right + t * tile_stride + 64 * pair;
          codes[t] = {load_int(unit), load_int(unit + 32)};
        }
        for (int r = 0; r < R; ++r) {
          int32_t two;
          __builtin_memcpy(&two, left + r * left_stride + 4 * pair, 4);
          const __m256i q = _mm256_set1_epi32(two);
          for (int t = 0; t < T; ++t) {
            acc[r][t].a = _mm256_add_epi32(acc[r][t].a, _mm256_madd_epi16(codes[t].a, q));
            acc[r][t].b = _mm256_add_epi32(acc[r][t].b, _mm256_madd_epi16(codes[t].b, q));
          }
        }
      }
    }
    F sum(int r, int t) const { return {_mm256_cvtepi32_ps(acc[r][t].a), _mm256_cvtepi32_ps(acc[r][t].b)}; }
  };

  // Narrow integer products: 4-bit codes times bytes. The left operand has one byte a value; a unit of the right
  // operand is 16 lanes x 4 codes, one byte each.
  static constexpr int64_t kNarrowUnitBytes = 64;

  static void store_bytes(__m256i a, __m256i b, std::byte* out) {
    // Values fit into bytes; signed or not, the low byte is meant.
    const __m256i mask = _mm256_set1_epi32(255);
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)), 0xd8);
    const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
  }
  /// Rounds x * factor (within +-127) for 16 values to signed bytes; adds them to `sum`.
  static I pack_signed(F x, F factor, std::byte* out, I sum) {
    const __m256i a = rounded(x.a, factor.a);
    const __m256i b = rounded(x.b, factor.b);
    store_bytes(a, b, out);
    return {_mm256_add_epi32(sum.a, a), _mm256_add_epi32(sum.b, b)};
  }
  /// Rounds x * factor + offset (within 0..255.99) down for 16 values to unsigned bytes.
  static void pack_unsigned(F x, F factor, F offset, std::byte* out) {
    const F y = add(mul(x, factor), offset);
    store_bytes(_mm256_cvttps_epi32(y.a), _mm256_cvttps_epi32(y.b), out);
  }
  /// 64 bytes of 4-bit codes -> the units of the low and of the high nibbles.
  static void stage_narrow(const std::byte* codes, std::byte* low, std::byte* high) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int64_t i = 0; i < 64; i += 32) {
      const __m256i both = load_int(codes + i);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + i), _mm256_and_si256(both, mask));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + i), _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
    }
  }

  /// SignedLeft: left operand signed, else unsigned. Sums of 16 bits take 4 steps (4 * 2 * 15 * 255 = 30600) before
  /// they are added to those of 32 bits.
  template <int R, int T, bool SignedLeft>
  struct NarrowSums {
    I acc[R][T];
    I part[R][T];

    void clear() {
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) acc[r][t] = part[r][t] = int_zero();
      }
    }
    void step(const std::byte* left, int64_t left_stride, const std::byte* right, int64_t tile_stride) {
      I codes[T];
      for (int t = 0; t < T; ++t)
        codes[t] = {load_int(right + t * tile_stride), load_int(right + t * tile_stride + 32)};
      const auto product = [](__m256i code, __m256i a) {
        return SignedLeft ? _mm256_maddubs_epi16(code, a) : _mm256_maddubs_epi16(a, code);
      };
      for (int r = 0; r < R; ++r) {
        int32_t four;
        __builtin_memcpy(&four, left + r * left_stride, 4);
        const __m256i a = _mm256_set1_epi32(four);
        for (int t = 0; t < T; ++t) {
          part[r][t].a = _mm256_add_epi16(part[r][t].a, product(codes[t].a, a));
          part[r][t].b = _mm256_add_epi16(part[r][t].b, product(codes[t].b, a));
        }
      }
    }
    void flush() {
      const __m256i ones = _mm256_set1_epi16(1);
      for (int r = 0; r < R; ++r) {
        for (int t = 0; t < T; ++t) {
          acc[r][t].a = _mm256_add_epi32(acc[r][t].a, _mm256_madd_epi16(part[r][t].a, ones));
          acc[r][t].b = _mm256_add_epi32(acc[r][t].b, _mm256_madd_epi16(part[r][t].b, ones));
          part[r][t] = int_zero();
        }
      }
    }
    F sum(int r, int t) const { return {_mm256_cvtepi32_ps(acc[r][t].a), _mm256_cvtepi32_ps(acc[r][t].b)}; }
  };

  static void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace tare::kernels
