#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/float_gemm.h"

// Sixteen lanes as two AVX2 registers. Included by files of this folder only, before the loops they share with the
// other ISA levels.
namespace tare::kernels {
namespace {

struct Lanes {
  __m256 a, b;
};

constexpr int kRegisters = 16;

inline Lanes zero_lanes() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Lanes load_lanes(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store_lanes(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline __m256i first_lanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/// The first `count` (0..16) lanes.
inline Lanes load_some(const float* p, int64_t count) {
  return {_mm256_maskload_ps(p, first_lanes(count)), _mm256_maskload_ps(p + 8, first_lanes(count - 8))};
}
inline void store_some(float* p, Lanes x, int64_t count) {
  _mm256_maskstore_ps(p, first_lanes(count), x.a);
  _mm256_maskstore_ps(p + 8, first_lanes(count - 8), x.b);
}
inline Lanes broadcast(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Lanes add(Lanes x, Lanes y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline Lanes mul(Lanes x, Lanes y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
/// x * y + z, rounded once.
inline Lanes fma(Lanes x, Lanes y, Lanes z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

inline void prefetch_near(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
inline void prefetch_far(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

inline __m256i load_half_step(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

inline Lanes bytes_to_lanes(__m128i low, __m128i high) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
}

/// Sixteen numbers of a plane as f32.
inline Lanes load_plane(PlaneType type, const std::byte* p) {
  const auto* words = reinterpret_cast<const __m128i*>(p);
  const auto eight = [](const std::byte* q) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)); };
  switch (type) {
    case PlaneType::kF32:
      return load_lanes(reinterpret_cast<const float*>(p));
    case PlaneType::kF16:
      return {_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))};
    case PlaneType::kBF16:
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words)), 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1)), 16))};
    case PlaneType::kS8:
      return bytes_to_lanes(eight(p), eight(p + 8));
    case PlaneType::kU8:
      return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(p))),
              _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(p + 8)))};
    case PlaneType::kE4M3: {
      // Sign, four exponent and three mantissa bits at their places of an f16: its value is 2^-8 of ours.
      const __m256i w = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(words)), 8);
      const __m256i half = _mm256_and_si256(_mm256_srai_epi16(w, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
      const Lanes value = {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                           _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
      return mul(value, broadcast(256.0f));
    }
    case PlaneType::kE8M0:
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight(p)), 23)),
              _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight(p + 8)), 23))};
    case PlaneType::kNone:
      break;
  }
  return broadcast(1.0f);
}

// Decoders: load takes one step of a panel, column gives one of its kUnit columns, as kFactor times the codes' values.

// For kinds that are best decoded a whole step at a time.
template <class Decoder, int Unit>
struct DecodeAtOnce {
  static constexpr int kUnit = Unit;
  struct Step {
    Lanes columns[Unit];
  };
  Step load(const std::byte* p) const {
    Step step;
    Decoder::decode(p, step.columns);
    return step;
  }
  Lanes column(const Step& step, int j) const { return step.columns[j]; }
};

struct DecodeF32 : DecodeAtOnce<DecodeF32, 1> {
  static constexpr float kFactor = 1;
  explicit DecodeF32(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) { out[0] = load_lanes(reinterpret_cast<const float*>(p)); }
};

struct DecodeBF16 : DecodeAtOnce<DecodeBF16, 2> {
  static constexpr float kFactor = 1;
  explicit DecodeBF16(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const __m256i low = load_half_step(p), high = load_half_step(p + 32);
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    out[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
    out[1] = {_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
  }
};

struct DecodeF16 : DecodeAtOnce<DecodeF16, 2> {
  static constexpr float kFactor = 1;
  explicit DecodeF16(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    out[0] = {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
    out[1] = {_mm256_cvtph_ps(_mm_loadu_si128(q + 2)), _mm256_cvtph_ps(_mm_loadu_si128(q + 3))};
  }
};

// Byte j of each dword moved to its top, the rest 0: the dword is 2^24 times the signed byte, and no sign extension is
// needed. A shuffle also leaves the shift ports to the conversions and products.
inline __m256i byte_on_top(__m256i v, int j) {
  const int z = 0x80;
  const __m256i pick = _mm256_setr_epi8(
      static_cast<char>(z), static_cast<char>(z), static_cast<char>(z), static_cast<char>(j), static_cast<char>(z),
      static_cast<char>(z), static_cast<char>(z), static_cast<char>(4 + j), static_cast<char>(z), static_cast<char>(z),
      static_cast<char>(z), static_cast<char>(8 + j), static_cast<char>(z), static_cast<char>(z), static_cast<char>(z),
      static_cast<char>(12 + j), static_cast<char>(z), static_cast<char>(z), static_cast<char>(z), static_cast<char>(j),
      static_cast<char>(z), static_cast<char>(z), static_cast<char>(z), static_cast<char>(4 + j), static_cast<char>(z),
      static_cast<char>(z), static_cast<char>(z), static_cast<char>(8 + j), static_cast<char>(z), static_cast<char>(z),
      static_cast<char>(z), static_cast<char>(12 + j));
  return _mm256_shuffle_epi8(v, pick);
}

inline Lanes top_bytes(__m256i low, __m256i high, int j) {
  return {_mm256_cvtepi32_ps(byte_on_top(low, j)), _mm256_cvtepi32_ps(byte_on_top(high, j))};
}

struct DecodeInt8 : DecodeAtOnce<DecodeInt8, 4> {
  static constexpr float kFactor = 0x1p24f;
  explicit DecodeInt8(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const __m256i low = load_half_step(p), high = load_half_step(p + 32);
    for (int j = 0; j < 4; ++j) out[j] = top_bytes(low, high, j);
  }
};

struct DecodeInt4 {
  static constexpr int kUnit = 8;
  static constexpr float kFactor = 0x1p24f;
  struct Step {
    __m256i even_low, even_high, odd_low, odd_high;
  };
  __m256i zero;
  explicit DecodeInt4(const FloatMatrix& w) : zero(_mm256_set1_epi8(static_cast<char>(w.nibble_zero))) {}
  Step load(const std::byte* p) const {
    const __m256i low = load_half_step(p), high = load_half_step(p + 32);
    const __m256i keep = _mm256_set1_epi8(15);
    const auto nibbles = [&](__m256i v) { return _mm256_sub_epi8(_mm256_and_si256(v, keep), zero); };
    return {nibbles(low), nibbles(high), nibbles(_mm256_srli_epi32(low, 4)), nibbles(_mm256_srli_epi32(high, 4))};
  }
  Lanes column(const Step& s, int j) const {
    return j % 2 == 0 ? top_bytes(s.even_low, s.even_high, j / 2) : top_bytes(s.odd_low, s.odd_high, j / 2);
  }
};

inline Lanes halves_to_lanes(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

struct DecodeE4M3 : DecodeAtOnce<DecodeE4M3, 4> {
  static constexpr float kFactor = 0x1p-8f;  // e4m3 bits read as f16: the bias differs by 8
  explicit DecodeE4M3(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const __m256i keep = _mm256_set1_epi16(static_cast<short>(0xbf80));
    for (int half = 0; half < 2; ++half) {
      const __m256i v = load_half_step(p + 32 * half);
      out[half] = halves_to_lanes(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 1), keep));
      out[half + 2] = halves_to_lanes(_mm256_and_si256(_mm256_srai_epi16(v, 1), keep));
    }
  }
};

struct DecodeE5M2 : DecodeAtOnce<DecodeE5M2, 4> {
  static constexpr float kFactor = 1;  // e5m2 is the upper half of an f16
  explicit DecodeE5M2(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    for (int half = 0; half < 2; ++half) {
      const __m256i v = load_half_step(p + 32 * half);
      out[half] = halves_to_lanes(_mm256_slli_epi16(v, 8));
      out[half + 2] = halves_to_lanes(_mm256_and_si256(v, _mm256_set1_epi16(static_cast<short>(0xff00))));
    }
  }
};

struct DecodeLut4 {
  static constexpr int kUnit = 8;
  static constexpr float kFactor = 1;
  struct Step {
    __m256i low, high;
  };
  __m256 below, above;  // entries 0..7 and 8..15
  explicit DecodeLut4(const FloatMatrix& w) : below(_mm256_loadu_ps(w.table)), above(_mm256_loadu_ps(w.table + 8)) {}
  Step load(const std::byte* p) const { return {load_half_step(p), load_half_step(p + 32)}; }
  __m256 look_up(__m256i v, int j) const {
    // The lookups read the lowest three bits of each lane; bit 3, moved to the sign, chooses between them.
    const __m256i index = _mm256_srli_epi32(v, 4 * j);
    const __m256 choose = _mm256_castsi256_ps(_mm256_slli_epi32(v, 28 - 4 * j));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(below, index), _mm256_permutevar8x32_ps(above, index), choose);
  }
  Lanes column(const Step& s, int j) const { return {look_up(s.low, j), look_up(s.high, j)}; }
};

struct DecodeLut2 {
  static constexpr int kUnit = 16;
  static constexpr float kFactor = 1;
  struct Step {
    __m256i low, high;
  };
  __m256 table;  // the four values, twice: bit 2 of an index belongs to the next code
  explicit DecodeLut2(const FloatMatrix& w) : table(_mm256_loadu_ps(w.table)) {}
  Step load(const std::byte* p) const { return {load_half_step(p), load_half_step(p + 32)}; }
  Lanes column(const Step& s, int j) const {
    return {_mm256_permutevar8x32_ps(table, _mm256_srli_epi32(s.low, 2 * j)),
            _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(s.high, 2 * j))};
  }
};

}  // namespace
}  // namespace tare::kernels
