#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "numerics/mini_float.h"
#include "numerics/packing.h"
#include "numerics/rounding.h"

namespace tare::numerics {
namespace {

// An independent definition: the value of a code by the textbook formula in double, no bit tricks.
double textbook(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t e = (code >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const uint32_t m = code & ((1u << mantissa_bits) - 1);
  const double sign = ((code >> (exponent_bits + mantissa_bits)) & 1) != 0 ? -1.0 : 1.0;
  if (e == 0) return sign * std::ldexp(static_cast<double>(m), 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(static_cast<double>(m), -mantissa_bits), static_cast<int>(e) - bias);
}

template <class F>
void check_all_codes(int exponent_bits, int mantissa_bits, int bias) {
  std::vector<double> finite;  // the values that are not negative, by code
  for (uint32_t code = 0; code < (1u << F::kBits); ++code) {
    const float value = F::decode(code);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F::decode(F::encode_ieee(value))));
      continue;
    }
    if (std::isinf(value)) {
      EXPECT_EQ(F::encode_ieee(value), code);
      EXPECT_EQ(F::decode(F::encode_saturating(value)), std::copysign(F::max_value(), value));
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), textbook(code, exponent_bits, mantissa_bits, bias)) << code;
    EXPECT_EQ(F::encode_ieee(value), code) << value;
    EXPECT_EQ(F::encode_saturating(value), code) << value;
    if ((code & F::kSignBit) == 0) finite.push_back(static_cast<double>(value));
  }
  for (size_t i = 1; i < finite.size(); ++i) {
    EXPECT_LT(finite[i - 1], finite[i]);
    // Halfway goes to the even code, anything beyond it to the nearer one, for both signs.
    const float middle = static_cast<float>((finite[i - 1] + finite[i]) / 2);
    EXPECT_EQ(F::encode_ieee(middle), i % 2 == 0 ? i : i - 1);
    EXPECT_EQ(F::encode_ieee(std::nextafter(middle, 0.0f)), i - 1);
    EXPECT_EQ(F::encode_ieee(std::nextafter(middle, 1e9f)), i);
    EXPECT_EQ(F::encode_ieee(-std::nextafter(middle, 1e9f)), i | F::kSignBit);
  }
}

TEST(MiniFloat, AllCodesFp16) {
  check_all_codes<Fp16>(5, 10, 15);
}
TEST(MiniFloat, AllCodesE4M3) {
  check_all_codes<E4M3>(4, 3, 7);
}
TEST(MiniFloat, AllCodesE4M3Fnuz) {
  check_all_codes<E4M3Fnuz>(4, 3, 8);
}
TEST(MiniFloat, AllCodesE5M2) {
  check_all_codes<E5M2>(5, 2, 15);
}
TEST(MiniFloat, AllCodesE2M1) {
  check_all_codes<E2M1>(2, 1, 1);
}

TEST(MiniFloat, Borders) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(E4M3::max_value(), 448.0f);
  EXPECT_EQ(E4M3Fnuz::max_value(), 240.0f);
  EXPECT_EQ(E5M2::max_value(), 57344.0f);
  EXPECT_EQ(E2M1::max_value(), 6.0f);
  EXPECT_EQ(E4M3::encode_ieee(464.0f), 0x7eu);  // halfway to the code that is NaN: even is 448
  EXPECT_EQ(E4M3::encode_ieee(465.0f), 0x7fu);
  EXPECT_EQ(E4M3::encode_saturating(465.0f), 0x7eu);
  EXPECT_EQ(E4M3::encode_saturating(-1e9f), 0xfeu);
  EXPECT_EQ(E4M3::encode_saturating(inf), 0x7eu);
  EXPECT_EQ(E4M3::encode_saturating(std::nanf("")) & 0x7fu, 0x7fu);
  EXPECT_EQ(E4M3::encode_ieee(0x1p-9f), 0x01u);
  EXPECT_EQ(E4M3::encode_ieee(0x1p-10f), 0x00u);
  EXPECT_TRUE(std::isnan(E4M3Fnuz::decode(0x80)));
  EXPECT_EQ(E4M3Fnuz::encode_ieee(-0.0f), 0x00u);
  EXPECT_EQ(E4M3Fnuz::encode_ieee(-0x1p-12f), 0x00u);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00u);
  EXPECT_EQ(Fp16::encode_saturating(65520.0f), 0x7bffu);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000u);
  EXPECT_EQ(E2M1::encode_saturating(-100.0f), 0xfu);
}

TEST(MiniFloat, Bf16AllCodesAndTies) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_f32(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      EXPECT_EQ(f32_to_bf16(value), code);
    }
  }
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80u);  // tie to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82u);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81u);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80u);
}

TEST(MiniFloat, E8M0AllCodes) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(static_cast<uint8_t>(code))), std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(Packing, EveryWidthLengthAndPosition) {
  for (int bits = 1; bits <= 16; ++bits) {
    const uint32_t top = (1u << bits) - 1;
    for (int64_t count = 0; count <= 67; ++count) {
      // A guard byte behind the stream and a pattern under it: writing a code must touch nothing else.
      std::vector<std::byte> stream(static_cast<size_t>(packed_bytes(count, bits)) + 1, std::byte{0xa5});
      std::vector<uint32_t> codes;
      for (int64_t i = 0; i < count; ++i) codes.push_back(static_cast<uint32_t>(i * 2654435761) & top);
      for (int64_t i = count; i-- > 0;) write_code(stream.data(), i * bits, bits, codes[static_cast<size_t>(i)]);
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(read_code(stream.data(), i * bits, bits), codes[static_cast<size_t>(i)]) << bits << " " << i;
      }
      EXPECT_EQ(stream.back(), std::byte{0xa5});
    }
    for (uint32_t code = 0; code <= (bits > 8 ? 255 : top); ++code) {
      for (int position = 0; position < 8; ++position) {
        std::byte stream[4] = {};
        write_code(stream, position, bits, code);
        EXPECT_EQ(read_code(stream, position, bits), code);
      }
    }
  }
}

TEST(Packing, ThreeBitCodesStraddleWords) {
  // 32 codes of 3 bits fill three 32-bit words; code 10 has two bits in word 0 and one in word 1 (bits 30..32).
  std::vector<std::byte> stream(12);
  write_code(stream.data(), 30, 3, 0b101);
  EXPECT_EQ(stream[3], std::byte{0x40});
  EXPECT_EQ(stream[4], std::byte{0x01});
}

TEST(Packing, SignExtend) {
  EXPECT_EQ(sign_extend(0x8, 4), -8);
  EXPECT_EQ(sign_extend(0x7, 4), 7);
  EXPECT_EQ(sign_extend(0xff, 8), -1);
  EXPECT_EQ(sign_extend(1, 1), -1);
}

TEST(Rounding, HalfToEvenAndClamp) {
  EXPECT_EQ(round_half_even(2.5f), 2.0f);
  EXPECT_EQ(round_half_even(3.5f), 4.0f);
  EXPECT_EQ(round_half_even(-2.5f), -2.0f);
  EXPECT_EQ(round_clamp(15.5f, 0, 15), 15);
  EXPECT_EQ(round_clamp(-0.6f, 0, 15), 0);
  EXPECT_EQ(round_clamp(14.5f, 0, 15), 14);
  EXPECT_EQ(round_clamp(1e30f, -127, 127), 127);
}

}  // namespace
}  // namespace tare::numerics
