#include "kvcache/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace tare::kvcache {
namespace {

using Tokens = std::vector<int32_t>;

Tokens iota(int32_t from, int64_t count) {
  Tokens out;
  for (int64_t i = 0; i < count; ++i) out.push_back(from + static_cast<int32_t>(i));
  return out;
}

BlockManager make(int64_t blocks, int64_t block_size = 4) {
  return BlockManager({.num_blocks = blocks, .block_size = block_size, .model = "m", .kv_format = "int4"});
}

void compute(BlockManager& manager, SequenceId id, const Tokens& tokens) {
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(manager.reserve(id, manager.computed(id) + static_cast<int64_t>(tokens.size()), copies));
  manager.commit(id, tokens);
}

TEST(BlockManager, APrefixIsFoundByTokensModelFormatAndSalt) {
  BlockManager manager = make(16);
  const SequenceId a = manager.add(iota(0, 10), "alice");
  EXPECT_EQ(manager.computed(a), 0);
  compute(manager, a, iota(0, 10));
  EXPECT_EQ(manager.table(a).size(), 3u);

  // All but the last token at most, whole blocks only.
  const SequenceId b = manager.add(iota(0, 8), "alice");
  EXPECT_EQ(manager.computed(b), 4);
  EXPECT_EQ(manager.table(b)[0], manager.table(a)[0]);
  const SequenceId c = manager.add(iota(0, 9), "alice");
  EXPECT_EQ(manager.computed(c), 8);
  EXPECT_EQ(manager.computed(manager.add(iota(0, 9), "bob")), 0);
  EXPECT_EQ(manager.computed(manager.add(iota(1, 9), "alice")), 0);
  // Equal tokens after other ones are another block.
  Tokens other = iota(50, 4);
  const Tokens same = iota(4, 8);
  other.insert(other.end(), same.begin(), same.end());
  EXPECT_EQ(manager.computed(manager.add(other, "alice")), 0);
  EXPECT_EQ(manager.counters().hit_tokens, 12);
}

TEST(BlockManager, ContentsOutliveTheirSequenceUntilRoomIsNeeded) {
  BlockManager manager = make(4);
  const SequenceId a = manager.add(iota(0, 12));
  compute(manager, a, iota(0, 12));
  manager.release(a);
  EXPECT_EQ(manager.available(), 4);
  EXPECT_EQ(manager.cached(), 3);
  EXPECT_EQ(manager.referenced(), 0);

  // Two blocks are needed: the unused one, then the last block of the released sequence.
  const SequenceId b = manager.add(iota(100, 8));
  compute(manager, b, iota(100, 8));
  EXPECT_EQ(manager.counters().evictions, 1);
  EXPECT_EQ(manager.computed(manager.add(iota(0, 12))), 8);
}

TEST(BlockManager, ReserveIsAllOrNothing) {
  BlockManager manager = make(3);
  const SequenceId a = manager.add(iota(0, 5));
  std::vector<BlockCopy> copies;
  EXPECT_FALSE(manager.reserve(a, 13, copies));
  EXPECT_EQ(manager.available(), 3);
  EXPECT_TRUE(manager.reserve(a, 12, copies));
  EXPECT_EQ(manager.available(), 0);
  const SequenceId b = manager.add(iota(0, 1));
  EXPECT_EQ(manager.blocks_needed(b, 1), 1);
  EXPECT_FALSE(manager.reserve(b, 1, copies));
  EXPECT_TRUE(copies.empty());
  manager.truncate(a, 5);
  EXPECT_TRUE(manager.reserve(b, 1, copies));
}

TEST(BlockManager, ForksCopyTheBlockTheyWrite) {
  BlockManager manager = make(8);
  const SequenceId a = manager.add(iota(0, 6));
  compute(manager, a, iota(0, 6));
  const SequenceId b = manager.fork(a);
  EXPECT_EQ(manager.referenced(), 2);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(manager.reserve(b, 7, copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, manager.table(a)[1]);
  EXPECT_EQ(copies[0].to, manager.table(b)[1]);
  EXPECT_EQ(manager.table(a)[0], manager.table(b)[0]);
  copies.clear();
  ASSERT_TRUE(manager.reserve(a, 7, copies));
  EXPECT_TRUE(copies.empty());  // the other one is alone now
  // Both fill their block with the same tokens: one is enough.
  manager.commit(a, Tokens{7});
  manager.commit(b, Tokens{7});
  compute(manager, a, Tokens{8});
  compute(manager, b, Tokens{8});
  EXPECT_EQ(manager.table(a)[1], manager.table(b)[1]);
  EXPECT_EQ(manager.counters().merges, 1);
  manager.release(a);
  manager.release(b);
  EXPECT_EQ(manager.available(), 8);
}

TEST(BlockManager, AWindowGivesBlocksBack) {
  BlockManager manager = make(4);
  const SequenceId a = manager.add(iota(0, 1));
  compute(manager, a, iota(0, 14));
  manager.forget_before(a, 9);
  EXPECT_EQ(manager.table(a)[0], -1);
  EXPECT_EQ(manager.table(a)[1], -1);
  EXPECT_NE(manager.table(a)[2], -1);
  EXPECT_EQ(manager.available(), 2);
  manager.forget_before(a, 9);
  compute(manager, a, iota(14, 8));
  manager.release(a);
  EXPECT_EQ(manager.available(), 4);
}

TEST(BlockManager, WithoutCachingNothingIsKept) {
  BlockManager manager({.num_blocks = 4, .block_size = 4, .prefix_caching = false});
  const SequenceId a = manager.add(iota(0, 8));
  compute(manager, a, iota(0, 8));
  manager.release(a);
  EXPECT_EQ(manager.cached(), 0);
  EXPECT_EQ(manager.computed(manager.add(iota(0, 8))), 0);
}

TEST(BlockManager, BudgetIsNeverExceeded) {
  EXPECT_EQ(*blocks_for_budget(1000, 300), 3);
  const auto none = blocks_for_budget(299, 300);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::kDoesNotFit);
}

/// A million random events. Each slot of each block remembers the whole prefix that it was written for, so that a wrong
/// hit, a missing copy or a block in two hands shows as a wrong prefix.
TEST(BlockManager, MillionRandomEvents) {
  constexpr int64_t kBlocks = 24;
  constexpr int64_t kBlockSize = 4;
  BlockManager manager = make(kBlocks, kBlockSize);
  struct Live {
    SequenceId id;
    std::string salt;
    Tokens tokens;
  };
  std::vector<Live> live;
  std::vector<std::vector<uint64_t>> memory(kBlocks, std::vector<uint64_t>(kBlockSize));
  std::mt19937 random(12345);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const auto extend = [](uint64_t prefix, int32_t token) {
    return (prefix ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u + 77;
  };
  const auto start_of = [](const Live& s) { return s.salt.empty() ? uint64_t{1} : uint64_t{2}; };
  const auto check = [&](const Live& s) {
    const auto table = manager.table(s.id);
    uint64_t prefix = start_of(s);
    for (int64_t p = 0; p < manager.computed(s.id); ++p) {
      prefix = extend(prefix, s.tokens[static_cast<size_t>(p)]);
      const auto block = static_cast<size_t>(table[static_cast<size_t>(p / kBlockSize)]);
      if (memory[block][static_cast<size_t>(p % kBlockSize)] != prefix) return false;
    }
    return true;
  };
  const auto grow = [&](Live& s, int64_t count) {
    std::vector<BlockCopy> copies;
    const int64_t from = manager.computed(s.id);
    const int64_t needed = manager.blocks_needed(s.id, from + count);
    const int64_t available = manager.available();
    const bool fits = manager.reserve(s.id, from + count, copies);
    ASSERT_EQ(fits, needed <= available);
    ASSERT_EQ(manager.available(), fits ? available - needed : available);
    if (!fits) return;
    for (const BlockCopy& c : copies) memory[static_cast<size_t>(c.to)] = memory[static_cast<size_t>(c.from)];
    uint64_t prefix = start_of(s);
    for (int64_t p = 0; p < from; ++p) prefix = extend(prefix, s.tokens[static_cast<size_t>(p)]);
    Tokens added;
    const auto table = manager.table(s.id);
    for (int64_t p = from; p < from + count; ++p) {
      // A prompt continues as given; then tokens of a small alphabet, so that prefixes meet.
      if (static_cast<int64_t>(s.tokens.size()) <= p) s.tokens.push_back(static_cast<int32_t>(below(2)));
      added.push_back(s.tokens[static_cast<size_t>(p)]);
      prefix = extend(prefix, added.back());
      memory[static_cast<size_t>(table[static_cast<size_t>(p / kBlockSize)])][static_cast<size_t>(p % kBlockSize)] =
          prefix;
    }
    manager.commit(s.id, added);
  };

  int64_t full = 0;
  for (int64_t event = 0; event < 1000000; ++event) {
    const int64_t kind = below(16);
    if (live.empty() || (kind < 3 && live.size() < 10)) {
      Live s{0, below(2) != 0 ? "" : "salt", {}};
      for (int64_t i = 0, n = 1 + below(20); i < n; ++i) s.tokens.push_back(static_cast<int32_t>(below(2)));
      s.id = manager.add(s.tokens, s.salt);
      ASSERT_LT(manager.computed(s.id), static_cast<int64_t>(s.tokens.size()));
      live.push_back(std::move(s));
    } else {
      const auto at = static_cast<size_t>(below(live.size()));
      Live& s = live[at];
      if (kind < 10) {
        const int64_t before = manager.computed(s.id);
        ASSERT_NO_FATAL_FAILURE(grow(s, 1 + below(6)));
        if (manager.computed(s.id) == before) ++full;
      } else if (kind < 11 && live.size() < 10) {
        s.tokens.resize(std::max(s.tokens.size(), static_cast<size_t>(manager.computed(s.id))));
        Live copy = s;
        copy.id = manager.fork(s.id);
        live.push_back(std::move(copy));
      } else if (kind < 12) {
        const int64_t keep = below(static_cast<uint64_t>(manager.computed(s.id)) + 1);
        manager.truncate(s.id, keep);
        ASSERT_EQ(manager.computed(s.id), keep);
        s.tokens.resize(static_cast<size_t>(std::max<int64_t>(keep, 1)));
      } else if (kind < 15 || event % 1000 != 0) {
        manager.release(s.id);
        live.erase(live.begin() + static_cast<int64_t>(at));
      } else {
        manager.clear_cache();
        ASSERT_EQ(manager.cached(), 0);
      }
    }
    if (!live.empty()) {
      ASSERT_TRUE(check(live[static_cast<size_t>(below(live.size()))])) << "event " << event;
    }
    if (event % 16 == 0) {
      std::set<int32_t> held;
      for (const Live& s : live) {
        ASSERT_TRUE(check(s)) << "event " << event;
        for (const int32_t b : manager.table(s.id)) held.insert(b);
      }
      ASSERT_EQ(static_cast<int64_t>(held.size()), manager.referenced()) << "event " << event;
      ASSERT_LE(manager.referenced(), kBlocks);
    }
  }
  for (const Live& s : live) manager.release(s.id);
  EXPECT_EQ(manager.available(), kBlocks);
  EXPECT_EQ(manager.sequences(), 0);
  // The test saw what it is about.
  EXPECT_GT(full, 1000);
  EXPECT_GT(manager.counters().hit_tokens, 1000);
  EXPECT_GT(manager.counters().evictions, 1000);
  EXPECT_GT(manager.counters().copies, 1000);
  EXPECT_GT(manager.counters().merges, 1000);
}

}  // namespace
}  // namespace tare::kvcache
