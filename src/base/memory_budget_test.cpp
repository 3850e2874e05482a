#include "base/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace tare {
namespace {

TEST(MemoryBudget, GrantsUpToTheLimitAndTakesBack) {
  MemoryBudget budget(100);
  {
    auto weights = budget.reserve("weights", 60);
    ASSERT_TRUE(weights.ok());
    auto cache = budget.reserve("KV cache", 40);
    ASSERT_TRUE(cache.ok());
    EXPECT_EQ(*budget.available_bytes(), 0u);
    const auto more = budget.reserve("workspace", 1);
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(exit_code(more.error().kind), 3);
    EXPECT_EQ(
        more.error().message(),
        "over the memory budget (workspace): expected at most 0 B (0 bytes of 100 are left), found 1 B (1 bytes); "
        "held: weights 60 B, KV cache 40 B; raise --memory");
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_EQ(budget.peak_bytes(), 100u);
}

TEST(MemoryBudget, ResizeIsAllOrNothing) {
  MemoryBudget budget(100);
  auto held = *budget.reserve("x", 50);
  EXPECT_FALSE(held.resize(101).ok());
  EXPECT_EQ(held.bytes(), 50u);
  EXPECT_TRUE(held.resize(100).ok());
  EXPECT_TRUE(held.resize(1).ok());
  EXPECT_EQ(budget.used_bytes(), 1u);
  MemoryBudget::Reservation moved = std::move(held);
  held.release();
  EXPECT_EQ(budget.used_bytes(), 1u);
  moved = *budget.reserve("y", 7);
  EXPECT_EQ(budget.used_bytes(), 7u);
}

TEST(MemoryBudget, WithoutALimitItCounts) {
  MemoryBudget budget;
  const auto a = *budget.reserve("a", uint64_t{1} << 60);
  EXPECT_FALSE(budget.available_bytes().has_value());
  EXPECT_EQ(budget.holders().front().name, "a");
}

TEST(MemoryBudget, HugeRequestsDoNotWrapAround) {
  MemoryBudget budget(100);
  const auto held = *budget.reserve("a", 60);
  EXPECT_FALSE(budget.reserve("b", UINT64_MAX - 10).ok());
  EXPECT_EQ(budget.used_bytes(), 60u);
}

TEST(MemoryBudget, ThreadsNeverExceedTheLimit) {
  MemoryBudget budget(10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        [[maybe_unused]] const auto held = budget.reserve("x", 4);
        EXPECT_LE(budget.used_bytes(), 10u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_LE(budget.peak_bytes(), 10u);
}

TEST(Rss, GrowsWithTouchedMemory) {
  const uint64_t before = current_rss_bytes();
  EXPECT_GT(before, 0u);
  std::vector<char> block(size_t{32} << 20, 1);
  EXPECT_GE(current_rss_bytes(), before + (uint64_t{24} << 20));
  EXPECT_GE(peak_rss_bytes(), current_rss_bytes());
  EXPECT_EQ(block[12345], 1);
}

}  // namespace
}  // namespace tare
