#include "quantize/allocate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tare::quantize {
namespace {

using Units = std::vector<std::vector<AllocationOption>>;

// n weights in 2, 3, ..., 8 bits; each bit divides the squared error by 4.
std::vector<AllocationOption> bits(int64_t weights, double sensitivity) {
  std::vector<AllocationOption> out;
  for (int b = 2; b <= 8; ++b) out.push_back({.bytes = weights * b / 8, .cost = sensitivity * std::pow(4.0, -b)});
  return out;
}

int64_t bits_of(const Allocation& a, size_t unit) {
  return static_cast<int64_t>(a.choice[unit]) + 2;
}

// The derivative of s 4^-b is the same everywhere at the optimum, so s1 / s2 = 4^(b1 - b2): a sensitivity 64 times as
// large is worth 3 bits more, at any size of the matrices.
TEST(Allocate, ASensitivityOf64TimesIsWorthThreeBits) {
  Units units;
  for (int i = 0; i < 7; ++i) units.push_back(bits(1000, 1));
  units.push_back(bits(1000, 64));
  units.push_back(bits(3000, 3));  // the same per weight as the first
  // 3 bits for the plain ones and 6 for the planted one use this up exactly.
  const auto made = allocate(units, (7 * 3 + 6 + 3 * 3) * 125);
  ASSERT_TRUE(made.ok()) << made.error().message();
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(bits_of(*made, i), 3);
  EXPECT_EQ(bits_of(*made, 7), 6);
  EXPECT_EQ(bits_of(*made, 8), 3);
  EXPECT_EQ(made->bytes, 4500);
}

// All choices of small random instances: never over the budget, nothing that fits is left undone, and no more than
// one hull step above the best choice there is.
TEST(Allocate, AgainstAllChoices) {
  std::mt19937 random(3);
  int exact = 0, tried = 0;
  for (int round = 0; round < 300; ++round) {
    Units units(2 + random() % 4);
    int64_t smallest = 0, largest = 0;
    double worst_step = 0;
    for (auto& options : units) {
      const size_t count = 1 + random() % 5;
      int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
      double top = 0, bottom = 1e9;
      for (size_t i = 0; i < count; ++i) {
        options.push_back({.bytes = static_cast<int64_t>(random() % 100), .cost = static_cast<double>(random() % 50)});
        low = std::min(low, options.back().bytes);
        high = std::max(high, options.back().bytes);
        top = std::max(top, options.back().cost);
        bottom = std::min(bottom, options.back().cost);
      }
      smallest += low;
      largest += high;
      worst_step = std::max(worst_step, top - bottom);
    }
    const int64_t budget = smallest + static_cast<int64_t>(random() % static_cast<uint32_t>(largest - smallest + 5));
    const auto made = allocate(units, budget);
    ASSERT_TRUE(made.ok());
    double best = 1e18;
    std::vector<size_t> choice(units.size());
    while (true) {
      int64_t bytes = 0;
      double cost = 0;
      for (size_t u = 0; u < units.size(); ++u) {
        bytes += units[u][choice[u]].bytes;
        cost += units[u][choice[u]].cost;
      }
      if (bytes <= budget) best = std::min(best, cost);
      size_t u = 0;
      while (u < units.size() && ++choice[u] == units[u].size()) choice[u++] = 0;
      if (u == units.size()) break;
    }
    EXPECT_LE(made->bytes, budget);
    EXPECT_GE(made->cost, best);
    EXPECT_LE(made->cost, best + worst_step) << round;
    exact += made->cost == best ? 1 : 0;
    ++tried;
    int64_t bytes = 0;
    for (size_t u = 0; u < units.size(); ++u) bytes += units[u][made->choice[u]].bytes;
    EXPECT_EQ(bytes, made->bytes);
    for (size_t u = 0; u < units.size(); ++u) {
      const AllocationOption& now = units[u][made->choice[u]];
      for (const AllocationOption& other : units[u]) {
        EXPECT_FALSE(other.cost < now.cost && bytes - now.bytes + other.bytes <= budget) << "a change that fits";
      }
    }
  }
  EXPECT_GT(exact, tried / 2);
}

TEST(Allocate, TiesGoToTheFirstAndEqualOptionsToo) {
  const std::vector<AllocationOption> one = {{10, 4}, {20, 1}, {20, 1}, {30, 1}};
  const auto made = allocate({one, one, one}, 50);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->choice, (std::vector<size_t>{1, 1, 0}));
}

TEST(Allocate, RefusesABudgetBelowTheSmallest) {
  const auto made = allocate({{{10, 1}}, {{7, 3}, {9, 2}}}, 16);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message().find("at least 17 bytes"), std::string::npos) << made.error().message();
  EXPECT_FALSE(allocate({{}}, 5).ok());
  EXPECT_TRUE(allocate({}, 0).ok());
}

}  // namespace
}  // namespace tare::quantize
