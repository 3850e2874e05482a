#include "kernels/kv_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numerics/mini_float.h"

namespace tare::kernels {
namespace {

std::vector<float> round_trip(KvForm form, KvSide side, int64_t block_size, const std::vector<float>& x,
                              float static_scale = 1) {
  const auto d = static_cast<int64_t>(x.size());
  const KvPageLayout layout = kv_page_layout(form, side, d, block_size);
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes), std::byte{0xff});
  write_kv(layout, bytes.data(), block_size - 1, x.data(), static_scale);
  std::vector<float> out(x.size());
  read_kv(layout, bytes.data(), block_size - 1, static_scale, out.data());
  return out;
}

TEST(KvPage, PlacesAreDistinctAndFillTheCodes) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kE4M3, KvType::kInt8, KvType::kInt4}) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      for (const int64_t block_size : {1, 2, 4, 8, 16, 32, 64}) {
        for (const int64_t d : {8, 20, 80, 96}) {
          const KvPageLayout layout = kv_page_layout({type}, side, d, block_size);
          const int64_t nibbles = type == KvType::kInt4 ? 2 : 1;
          const int64_t element =
              type == KvType::kInt4 ? 1 : layout.code_bytes / (layout.block_size * layout.padded_dim);
          std::vector<int> seen(static_cast<size_t>(layout.code_bytes / element * nibbles));
          for (int64_t t = 0; t < block_size; ++t) {
            for (int64_t c = 0; c < layout.padded_dim; ++c) {
              const CodePlace place = code_place(layout, t, c);
              ASSERT_EQ(place.byte % element, 0);
              ++seen.at(static_cast<size_t>(place.byte / element * nibbles + place.shift / 4));
            }
          }
          for (const int count : seen) ASSERT_EQ(count, 1);
        }
      }
    }
  }
}

TEST(KvPage, IntegerFormsByHand) {
  // min 1, max 4: scale 0.2 (int4) as the f16 above it, zero 1.
  const std::vector<float> x = {1, 4, 2, 3, 1.09f, 1.11f, 1, 1};
  const KvScale s = choose_kv_scale({KvType::kInt4}, x.data(), 8);
  EXPECT_EQ(numerics::f16_to_f32(s.zero), 1);
  const float scale = numerics::f16_to_f32(s.scale);
  EXPECT_GE(scale, 0.2f);
  EXPECT_LT(scale, 0.2f * (1 + 0x1p-10f));
  const std::vector<float> back = round_trip({KvType::kInt4}, KvSide::kKey, 16, x);
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[1], scale * 15 + 1);
  EXPECT_EQ(back[2], scale * 5 + 1);
  EXPECT_EQ(back[4], 1);
  EXPECT_EQ(back[5], scale * 1 + 1);
}

TEST(KvPage, RoundTripErrorIsAtMostHalfAScale) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    const float levels = type == KvType::kInt8 ? 255 : 15;
    for (const int64_t d : {64, 128}) {
      for (const float mean : {0.0f, 1.0f, -1000.0f, 60000.0f}) {
        for (const float spread : {0.0f, 1e-6f, 0.01f, 1.0f, 300.0f}) {
          for (const float outlier : {0.0f, 500.0f}) {
            std::vector<float> x(static_cast<size_t>(d));
            for (float& value : x) value = mean + spread * normal(random);
            x[7] += outlier;
            const KvScale s = choose_kv_scale({type}, x.data(), d);
            const float scale = numerics::f16_to_f32(s.scale);
            const float zero = numerics::f16_to_f32(s.zero);
            const float lo = *std::min_element(x.begin(), x.end());
            const float hi = *std::max_element(x.begin(), x.end());
            // The stored numbers are those of the formula up to one f16 step each.
            EXPECT_LE(zero, lo);
            EXPECT_GE(zero, lo - std::max(std::fabs(lo) * 0x1p-10f, 0x1p-24f));
            if (hi > zero) {
              EXPECT_GE(scale * levels, (hi - zero) * (1 - 0x1p-22f));
              EXPECT_LE(scale, (hi - zero) / levels * (1 + 0x1p-10f) + 0x1p-24f);
            }
            const float rounding = (std::fabs(zero) + scale * levels) * 0x1p-22f;
            const std::vector<float> back = round_trip({type}, KvSide::kValue, 16, x);
            for (size_t c = 0; c < x.size(); ++c) ASSERT_LE(std::fabs(back[c] - x[c]), scale / 2 + rounding);
          }
        }
      }
    }
  }
}

TEST(KvPage, ConstantVectorsComeBack) {
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (const float value : {0.0f, -0.0f, 1.0f, -3.5f, 65504.0f}) {
      EXPECT_EQ(round_trip({type}, KvSide::kKey, 16, std::vector<float>(64, value)), std::vector<float>(64, value));
    }
  }
}

TEST(KvPage, AccidentsAreSeen) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const KvForm form : {KvForm{KvType::kInt8}, KvForm{KvType::kInt4}, KvForm{KvType::kE4M3, true},
                            KvForm{KvType::kE4M3}, KvForm{KvType::kE5M2}, KvForm{KvType::kF16}}) {
    for (const float bad : {inf, -inf, nan}) {
      std::vector<float> x(64, 1.0f);
      x[5] = bad;
      EXPECT_FALSE(std::isfinite(round_trip(form, KvSide::kKey, 16, x)[5])) << kv_type_name(form.type);
    }
  }
  EXPECT_TRUE(std::isnan(round_trip({KvType::kInt8}, KvSide::kKey, 16, {-70000, 1})[0]));
  EXPECT_EQ(round_trip({KvType::kE4M3}, KvSide::kKey, 16, {70000, 1})[0], 448);  // the static scale says so
}

TEST(KvPage, FloatFormsRoundToNearest) {
  const std::vector<float> x = {0.1f, -300, 1e-3f, 7};
  for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
    EXPECT_EQ(round_trip({KvType::kF32}, side, 16, x), x);
    for (size_t c = 0; c < x.size(); ++c) {
      EXPECT_EQ(round_trip({KvType::kF16}, side, 16, x)[c], numerics::f16_to_f32(numerics::f32_to_f16(x[c])));
      EXPECT_EQ(round_trip({KvType::kBF16}, side, 16, x)[c], numerics::bf16_to_f32(numerics::f32_to_bf16(x[c])));
    }
    EXPECT_EQ(round_trip({KvType::kE4M3}, side, 16, x, 0.5f)[1], -224);  // -600 saturates at 448 * 0.5
    EXPECT_NEAR(round_trip({KvType::kE4M3, true}, side, 16, x)[1], -300, 300 / 16.0);
    EXPECT_NEAR(round_trip({KvType::kE5M2, true}, side, 16, x)[0], 0.1, 0.1 / 8);
  }
}

}  // namespace
}  // namespace tare::kernels
