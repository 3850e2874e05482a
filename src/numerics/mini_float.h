#pragma once

#include <bit>
#include <cstdint>
#include <limits>

/// Small binary floating-point formats, exact and constexpr: fp16, fp8 (e4m3fn, e4m3fnuz, e5m2), fp4 (e2m1).
///
///     |sign|exponent (E bits)|mantissa (M bits)|      value = (-1)^s * 2^(e - bias) * 1.m,  e = 0: 2^(1 - bias) * 0.m
///
/// Decoding is exact. Encoding rounds to nearest, ties to even, and says in its name what happens above the largest
/// value.
namespace tare::numerics {

/// What the codes above the largest finite value mean.
enum class Specials {
  kIeee,     // exponent all ones: inf (mantissa 0) and NaN: fp16, e5m2
  kNanOnly,  // all ones is NaN, there is no inf, the rest of the top exponent is finite: e4m3fn
  kFnuz,     // neither inf nor -0: the code 100..0 is NaN: e4m3fnuz
  kNone,     // every code is finite: e2m1
};

template <int E, int M, int Bias, Specials S>
struct MiniFloat {
  static constexpr int kBits = 1 + E + M;
  static constexpr uint32_t kSignBit = 1u << (E + M);
  static constexpr uint32_t kExponentMask = (1u << E) - 1;
  static constexpr uint32_t kMantissaMask = (1u << M) - 1;
  static constexpr uint32_t kMaxFiniteCode = S == Specials::kIeee      ? (kExponentMask << M) - 1
                                             : S == Specials::kNanOnly ? kSignBit - 2
                                                                       : kSignBit - 1;
  static constexpr uint32_t kNanCode = S == Specials::kIeee      ? (kExponentMask << M) | (1u << (M - 1))
                                       : S == Specials::kNanOnly ? kSignBit - 1
                                                                 : kSignBit;

  /// The value of a code; bits above kBits are ignored.
  static constexpr float decode(uint32_t code) {
    const bool negative = (code & kSignBit) != 0;
    const uint32_t magnitude = code & (kSignBit - 1);
    if constexpr (S == Specials::kFnuz) {
      if (negative && magnitude == 0) return std::numeric_limits<float>::quiet_NaN();
    }
    if constexpr (S == Specials::kIeee) {
      constexpr float inf = std::numeric_limits<float>::infinity();
      if (magnitude > (kExponentMask << M)) return std::numeric_limits<float>::quiet_NaN();
      if (magnitude == (kExponentMask << M)) return negative ? -inf : inf;
    }
    if constexpr (S == Specials::kNanOnly) {
      if (magnitude == kSignBit - 1) return std::numeric_limits<float>::quiet_NaN();
    }
    // Both factors are exact (a small integer and a power of two), and so is their product.
    const uint32_t exponent = magnitude >> M;
    const uint32_t significand = exponent == 0 ? magnitude : (magnitude & kMantissaMask) | (1u << M);
    const int power = static_cast<int>(exponent == 0 ? 1 : exponent) - Bias - M;
    const float value =
        static_cast<float>(significand) * std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
    return negative ? -value : value;
  }

  /// Nearest code, ties to even. Beyond the largest finite value (after rounding), and for inf: the largest finite
  /// value. NaN gives the NaN code, or the largest value where the format has no NaN.
  static constexpr uint32_t encode_saturating(float value) { return encode(value, true); }

  /// Nearest code, ties to even. Overflow gives inf where the format has one, else NaN, else the largest value.
  static constexpr uint32_t encode_ieee(float value) { return encode(value, false); }

  static constexpr float max_value() { return decode(kMaxFiniteCode); }

 private:
  static constexpr uint32_t encode(float value, bool saturate) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 31) != 0 ? kSignBit : 0;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      if (S == Specials::kNone) return sign | kMaxFiniteCode;
      return S == Specials::kFnuz ? kNanCode : sign | kNanCode;
    }
    constexpr int lowest = 1 - Bias;  // exponent of the smallest normal value
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    uint32_t code = kMaxFiniteCode + 1;  // too large until shown otherwise
    if (exponent <= static_cast<int>(kExponentMask) - Bias) {
      const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
      const int shift = 23 - M + (exponent < lowest ? lowest - exponent : 0);
      if (shift > 24) {
        code = 0;  // below half of the smallest step
      } else {
        const uint32_t kept = significand >> shift;
        const uint32_t rest = significand & ((1u << shift) - 1);
        const uint32_t half = 1u << (shift - 1);
        const uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1u : 0u);
        // A carry out of the mantissa walks into the exponent, which is what rounding up to the next binade means.
        code = exponent < lowest ? rounded : (static_cast<uint32_t>(exponent - lowest) << M) + rounded;
      }
    }
    if (code > kMaxFiniteCode) {
      if (saturate || S == Specials::kNone) return sign | kMaxFiniteCode;
      if (S == Specials::kIeee) return sign | (kExponentMask << M);
      return S == Specials::kFnuz ? kNanCode : sign | kNanCode;
    }
    if (S == Specials::kFnuz && code == 0) return 0;
    return sign | code;
  }
};

using Fp16 = MiniFloat<5, 10, 15, Specials::kIeee>;
using E4M3 = MiniFloat<4, 3, 7, Specials::kNanOnly>;   // OCP e4m3fn, largest value 448
using E4M3Fnuz = MiniFloat<4, 3, 8, Specials::kFnuz>;  // largest value 240
using E5M2 = MiniFloat<5, 2, 15, Specials::kIeee>;     // largest value 57344
using E2M1 = MiniFloat<2, 1, 1, Specials::kNone>;      // 0 .5 1 1.5 2 3 4 6

constexpr float f16_to_f32(uint16_t code) {
  return Fp16::decode(code);
}
constexpr uint16_t f32_to_f16(float value) {
  return static_cast<uint16_t>(Fp16::encode_ieee(value));
}

/// bf16 is the upper half of an f32.
constexpr float bf16_to_f32(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}
constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// e8m0 (OCP microscaling scale): 2^(code - 127); 255 is NaN. 2^-127 is an f32 subnormal and still exact.
constexpr float e8m0_to_f32(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

}  // namespace tare::numerics
