// The bound of progressive groups, on the grid itself: |v| <= 119 before rounding keeps q * s2 in a byte and w8 in
// [-119, 126], for values inside the group and for those that GPTQ moved anywhere. One more step of range breaks it.
#include <gtest/gtest.h>

#include "quantize/grid.h"

namespace tare::quantize {
namespace {

struct Extremes {
  float least = 0;
  float most = 0;
  float product = 0;
};

// Groups [lo, hi] for all integers and halves with |.| <= p, in a row whose scale s1 is 1.
Extremes extremes(int p) {
  constexpr int64_t kGroup = 4;
  ThreadPool pool(2);
  std::vector<float> w = {static_cast<float>(p), 0, 0, 0};
  std::vector<std::pair<float, float>> ranges = {{0, static_cast<float>(p)}};
  for (int lo = -2 * p; lo <= 2 * p; lo += 3) {
    for (int hi = std::max(lo, 0); hi <= 2 * p; ++hi) {
      const float a = static_cast<float>(lo) / 2;
      const float b = static_cast<float>(hi) / 2;
      w.insert(w.end(), {a, b, a, b});
      ranges.emplace_back(a, b);
    }
  }
  const GridSpec spec{.kind = GridKind::kProgressive, .group_size = kGroup, .protected_range = p};
  const ChosenGrid grid = *ChosenGrid::choose(spec, w.data(), 1, static_cast<int64_t>(w.size()), pool);
  Extremes out;
  for (size_t g = 0; g < ranges.size(); ++g) {
    const auto column = static_cast<int64_t>(g) * kGroup;
    const float zero = grid.decode(0, column, 0);
    for (float v = -static_cast<float>(p) - 0.5f; v <= static_cast<float>(p) + 0.5f; v += 0.5f) {
      const uint8_t code = grid.encode(0, column, v);
      EXPECT_LE(code, 15);
      const float w8 = grid.decode(0, column, code);
      out.least = std::min(out.least, w8);
      out.most = std::max(out.most, w8);
      out.product = std::max(out.product, w8 - zero);
    }
    for (const float far : {-1e6f, 1e6f}) {
      const float w8 = grid.decode(0, column, grid.encode(0, column, far));
      out.least = std::min(out.least, w8);
      out.most = std::max(out.most, w8);
    }
  }
  return out;
}

TEST(GridBound, HoldsAt119AndBreaksAt121) {
  const Extremes safe = extremes(119);
  EXPECT_GE(safe.least, -119);
  EXPECT_LE(safe.most, 126);
  EXPECT_LE(safe.product, 240);
  EXPECT_GT(extremes(121).most, 127) << "a wider range must leave the byte, or this test has no teeth";
}

}  // namespace
}  // namespace tare::quantize
