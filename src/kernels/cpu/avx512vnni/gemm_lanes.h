#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/float_gemm.h"

// Sixteen lanes as one AVX-512 register. Included by files of this folder only, before the loops they share with the
// other ISA levels.
namespace tare::kernels {
namespace {

struct Lanes {
  __m512 v;
};

constexpr int kRegisters = 32;

inline Lanes zero_lanes() {
  return {_mm512_setzero_ps()};
}
inline Lanes load_lanes(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store_lanes(float* p, Lanes a) {
  _mm512_storeu_ps(p, a.v);
}
/// The first `count` (0..16) lanes.
inline Lanes load_some(const float* p, int64_t count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p)};
}
inline void store_some(float* p, Lanes a, int64_t count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), a.v);
}
inline Lanes broadcast(float a) {
  return {_mm512_set1_ps(a)};
}
inline Lanes add(Lanes a, Lanes b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Lanes mul(Lanes a, Lanes b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
/// a * b + c, rounded once.
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

inline void prefetch_near(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
inline void prefetch_far(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

inline __m512i load_step(const std::byte* p) {
  return _mm512_loadu_si512(p);
}

/// Sixteen numbers of a plane as f32.
inline Lanes load_plane(PlaneType type, const std::byte* p) {
  const auto* bytes = reinterpret_cast<const __m128i*>(p);
  const auto* words = reinterpret_cast<const __m256i*>(p);
  switch (type) {
    case PlaneType::kF32:
      return {_mm512_loadu_ps(reinterpret_cast<const float*>(p))};
    case PlaneType::kF16:
      return {_mm512_cvtph_ps(_mm256_loadu_si256(words))};
    case PlaneType::kBF16:
      return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(words)), 16))};
    case PlaneType::kS8:
      return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)))};
    case PlaneType::kU8:
      return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes)))};
    case PlaneType::kE4M3: {
      // Sign, four exponent and three mantissa bits at their places of an f16: its value is 2^-8 of ours.
      const __m256i w = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(bytes)), 8);
      const __m256i half = _mm256_and_si256(_mm256_srai_epi16(w, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
      return {_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f))};
    }
    case PlaneType::kE8M0:
      return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes)), 23))};
    case PlaneType::kNone:
      break;
  }
  return {_mm512_set1_ps(1.0f)};
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
    const __m512i v = load_step(p);
    out[0].v = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    out[1].v = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

struct DecodeF16 : DecodeAtOnce<DecodeF16, 2> {
  static constexpr float kFactor = 1;
  explicit DecodeF16(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    out[0].v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    out[1].v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)));
  }
};

struct DecodeInt8 : DecodeAtOnce<DecodeInt8, 4> {
  static constexpr float kFactor = 1;
  explicit DecodeInt8(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const __m512i v = load_step(p);
    out[0].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24), 24));
    out[1].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 16), 24));
    out[2].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 8), 24));
    out[3].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24));
  }
};

inline void halves_to_lanes(__m512i halves, Lanes* low, Lanes* high) {
  low->v = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  high->v = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}

struct DecodeE4M3 : DecodeAtOnce<DecodeE4M3, 4> {
  static constexpr float kFactor = 0x1p-8f;  // e4m3 bits read as f16: the bias differs by 8
  explicit DecodeE4M3(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const __m512i v = load_step(p);
    const __m512i keep = _mm512_set1_epi16(static_cast<short>(0xbf80));
    halves_to_lanes(_mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 1), keep), out, out + 1);
    halves_to_lanes(_mm512_and_si512(_mm512_srai_epi16(v, 1), keep), out + 2, out + 3);
  }
};

struct DecodeE5M2 : DecodeAtOnce<DecodeE5M2, 4> {
  static constexpr float kFactor = 1;  // e5m2 is the upper half of an f16
  explicit DecodeE5M2(const FloatMatrix&) {}
  static void decode(const std::byte* p, Lanes* out) {
    const __m512i v = load_step(p);
    halves_to_lanes(_mm512_slli_epi16(v, 8), out, out + 1);
    halves_to_lanes(_mm512_and_si512(v, _mm512_set1_epi16(static_cast<short>(0xff00))), out + 2, out + 3);
  }
};

struct DecodeLut4 {
  static constexpr int kUnit = 8;
  static constexpr float kFactor = 1;
  using Step = __m512i;
  __m512 table;
  explicit DecodeLut4(const FloatMatrix& w) : table(_mm512_loadu_ps(w.table)) {}
  Step load(const std::byte* p) const { return load_step(p); }
  // The lookup reads the lowest four bits of each lane only.
  Lanes column(Step v, int j) const {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(v, static_cast<unsigned>(4 * j)), table)};
  }
};
using DecodeInt4 = DecodeLut4;

struct DecodeLut2 {
  static constexpr int kUnit = 16;
  static constexpr float kFactor = 1;
  using Step = __m512i;
  __m512 table;  // the four values, four times: bits 2 and 3 of an index belong to the next code
  explicit DecodeLut2(const FloatMatrix& w) : table(_mm512_loadu_ps(w.table)) {}
  Step load(const std::byte* p) const { return load_step(p); }
  Lanes column(Step v, int j) const {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(v, static_cast<unsigned>(2 * j)), table)};
  }
};

}  // namespace
}  // namespace tare::kernels
