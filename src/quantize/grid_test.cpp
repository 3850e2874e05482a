#include "quantize/grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "numerics/mini_float.h"
#include "numerics/rounding.h"

namespace tare::quantize {
namespace {

using tensor::QuantizedTensor;

std::vector<float> random_weights(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> w(static_cast<size_t>(count));
  for (float& v : w) v = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
  return w;
}

// The worked example of the QoQ notes, section 2.4: every printed integer.
TEST(Grid, WorkedExampleOfProgressiveGroups) {
  const std::vector<float> w = {.0210f,  -.0475f, .0882f, .0013f,  -.0631f, .0340f, -.0097f, .0559f,
                                -.0150f, .0068f,  .0121f, -.0034f, -.0202f, .0090f, .0007f,  -.0113f};
  ThreadPool pool(1);
  const QuantizedTensor t =
      *round_to_nearest({.kind = GridKind::kProgressive, .group_size = 8}, w.data(), 1, 16, "test", pool);
  const uint32_t codes[] = {8, 1, 15, 6, 0, 9, 5, 11, 2, 12, 14, 7, 0, 13, 9, 4};
  for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(t.code(0, k), codes[k]) << k;
  EXPECT_EQ(t->a->integer(0), 14);
  EXPECT_EQ(t->a->integer(1), 3);
  EXPECT_EQ(t->b->integer(0), -85);
  EXPECT_EQ(t->b->integer(1), -27);
  EXPECT_FLOAT_EQ(t->A->value(0), 0.00074100494f);

  const QuantizedTensor channel =
      *round_to_nearest({.kind = GridKind::kQoqChannel, .group_size = 0}, w.data(), 1, 16, "test", pool);
  const uint32_t channel_codes[] = {8, 2, 15, 6, 0, 10, 5, 12, 5, 7, 7, 6, 4, 7, 6, 5};
  for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(channel.code(0, k), channel_codes[k]) << k;
  EXPECT_NEAR(channel->a->value(0), .01008606, 1e-8);
  EXPECT_NEAR(channel->b->value(0), -.06311035, 1e-8);
}

// |v| <= p keeps q*s2 in a byte and w8 in [-119, 126]; with p = 121 it must not.
TEST(Grid, ProtectedRangeIsNeededAndEnough) {
  const auto largest = [](int p) {
    int top = 0;
    for (int lo = -p; lo <= p; ++lo) {
      for (int hi = lo; hi <= p; ++hi) {
        const int s2 = numerics::round_clamp(static_cast<float>(hi - lo) / 15.0f, 1, 127);
        for (int v = lo; v <= hi; ++v) {
          const int q = numerics::round_clamp(static_cast<float>(v - lo) / static_cast<float>(s2), 0, 15);
          EXPECT_LE(q * s2, 255);
          EXPECT_GE(q * s2 + lo, -p);
          top = std::max(top, q * s2 + lo);
        }
      }
    }
    return top;
  };
  EXPECT_EQ(largest(119), 126);
  EXPECT_EQ(largest(121), 128);
}

TEST(Grid, RoundsWithinHalfAStepOnEveryGrid) {
  ThreadPool pool(2);
  for (const int64_t k : {1, 7, 96, 344, 576, 1031}) {
    const std::vector<float> w = random_weights(5 * k, 7);
    for (int bits = 2; bits <= 8; ++bits) {
      for (const int64_t group : {int64_t{0}, int64_t{32}, int64_t{128}}) {
        for (const bool symmetric : {true, false}) {
          for (const ScaleRule rule : {ScaleRule::kAbsmaxDivMax, ScaleRule::kCompressedTensors}) {
            const GridSpec spec{.bits = bits, .group_size = group, .symmetric = symmetric, .scale_rule = rule};
            const QuantizedTensor t = *round_to_nearest(spec, w.data(), 5, k, "test", pool);
            const std::vector<float> back = tensor::dequantize(t);
            for (int64_t i = 0; i < 5 * k; ++i) {
              const float scale = t->a->value(t->a->row_index(i / k) + t->a->column_index(i % k));
              // compressed-tensors clips the largest positive value by half a step; stored scales are rounded to f16.
              const float allowed =
                  scale * (0.5f + (symmetric && rule == ScaleRule::kCompressedTensors ? 0.5f : 0.0f)) +
                  scale * static_cast<float>((1 << bits)) * 0x1p-11f + 1e-6f;
              ASSERT_LE(std::abs(back[static_cast<size_t>(i)] - w[static_cast<size_t>(i)]),
                        allowed * (symmetric ? 1.0f : 2.0f))
                  << describe(spec) << " k " << k << " at " << i;
            }
          }
        }
      }
    }
  }
}

TEST(Grid, GroupsOfOneSignSurvive) {
  // Public reports of quantizers where a group of one sign collapses to a single level.
  const std::vector<float> w = {0.83f, 0.46f, 0.60f, 0.75f, -22, -15, -20, -17};
  ThreadPool pool(1);
  for (const GridSpec& spec : {GridSpec{.group_size = 4}, GridSpec{.group_size = 4, .symmetric = false},
                               GridSpec{.kind = GridKind::kMinimum, .group_size = 4}}) {
    const QuantizedTensor t = *round_to_nearest(spec, w.data(), 1, 8, "test", pool);
    const std::vector<float> back = tensor::dequantize(t);
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(back[i], w[i], t->a->value(static_cast<int64_t>(i) / 4) * 0.51f) << describe(spec);
  }
}

TEST(Grid, ZeroConstantAndHugeGroups) {
  ThreadPool pool(1);
  const std::vector<float> w = {0, 0, 0, 0, 0.5f, 0.5f, 0.5f, 0.5f};
  for (const GridKind kind : {GridKind::kInteger, GridKind::kMinimum, GridKind::kProgressive}) {
    const QuantizedTensor t = *round_to_nearest({.kind = kind, .group_size = 4}, w.data(), 1, 8, "test", pool);
    const std::vector<float> back = tensor::dequantize(t);
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(back[i], w[i], 0.5f / 119) << static_cast<int>(kind);
  }
  const std::vector<float> bad = {1, std::nanf("")};
  EXPECT_EQ(round_to_nearest({}, bad.data(), 1, 2, "test", pool).error().kind, ErrorKind::kNotFinite);
}

TEST(Grid, DecodeIsWhatTheTensorSays) {
  ThreadPool pool(1);
  const std::vector<float> w = random_weights(3 * 200, 3);
  for (const GridSpec& spec :
       {GridSpec{}, GridSpec{.symmetric = false}, GridSpec{.kind = GridKind::kMinimum, .group_size = 32},
        GridSpec{.kind = GridKind::kProgressive}, GridSpec{.kind = GridKind::kQoqChannel, .group_size = 0},
        GridSpec{.bits = 8, .group_size = 0, .per_tensor = true}}) {
    const ChosenGrid grid = *ChosenGrid::choose(spec, w.data(), 3, 200, pool);
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < 600; ++i) codes.push_back(grid.encode(i / 200, i % 200, w[static_cast<size_t>(i)]));
    std::vector<uint8_t> row_codes(codes.size());
    for (int64_t row = 0; row < 3; ++row) grid.encode_row(row, w.data() + row * 200, row_codes.data() + row * 200);
    EXPECT_EQ(codes, row_codes) << describe(spec);
    const std::vector<float> back = tensor::dequantize(*grid.finish(codes, "test"));
    for (int64_t i = 0; i < 600; ++i) {
      EXPECT_EQ(grid.decode(i / 200, i % 200, codes[static_cast<size_t>(i)]), back[static_cast<size_t>(i)])
          << describe(spec);
    }
  }
}

}  // namespace
}  // namespace tare::quantize
