#include "text/word_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace tare::text {
namespace {

using Kind = WordTable::Kind;

std::optional<std::vector<TokenId>> ids_in(const WordTable& table, Kind kind, std::string_view word) {
  std::vector<TokenId> ids;
  if (!table.find({kind, word}, [&](const WordToken& token) { ids.push_back(token.id); })) return std::nullopt;
  return ids;
}

TEST(WordTable, FindsWhatWasPutAndNothingElse) {
  WordTable table(1024);
  // All lengths, words that differ in the last byte only, every number of tokens up to the limit and one beyond.
  for (size_t bytes = 1; bytes <= WordTable::kLongest; ++bytes) {
    const std::string word = std::string(bytes - 1, 'a') + 'b';
    std::vector<WordToken> tokens;
    for (size_t i = 0; i < bytes % (WordTable::kMostTokens + 2); ++i) {
      tokens.push_back({static_cast<TokenId>(100 * bytes + i), static_cast<uint8_t>(i), static_cast<uint8_t>(i + 1)});
    }
    EXPECT_EQ(ids_in(table, Kind::kWord, word), std::nullopt) << bytes;
    table.put({Kind::kWord, word}, tokens);
    std::vector<WordToken> found;
    const bool known = table.find({Kind::kWord, word}, [&](const WordToken& token) { found.push_back(token); });
    ASSERT_EQ(known, tokens.size() <= WordTable::kMostTokens) << bytes;
    if (!known) continue;
    ASSERT_EQ(found.size(), tokens.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].id, tokens[i].id);
      EXPECT_EQ(found[i].begin, tokens[i].begin);
      EXPECT_EQ(found[i].end, tokens[i].end);
    }
    EXPECT_EQ(ids_in(table, Kind::kWordSpecialsAsText, word), std::nullopt);
    EXPECT_EQ(ids_in(table, Kind::kPiece, word), std::nullopt);
    EXPECT_EQ(ids_in(table, Kind::kWord, std::string(bytes, 'a')), std::nullopt);
    EXPECT_EQ(ids_in(table, Kind::kWord, word.substr(0, bytes - 1) + '\0'), std::nullopt);
  }
}

TEST(WordTable, FullTableRefusesAndSaysSo) {
  WordTable table(64);
  int words = 0;
  for (; !table.is_worn(); ++words) {
    ASSERT_LT(words, 1000);
    const WordToken token{words, 0, 1};
    table.put({Kind::kWord, fmt::format("w{}", words)}, {&token, 1});
  }
  EXPECT_GT(words, 64);
  int known = 0;
  for (int i = 0; i < words; ++i) {
    const auto ids = ids_in(table, Kind::kWord, fmt::format("w{}", i));
    if (!ids) continue;
    EXPECT_EQ(*ids, std::vector<TokenId>{i});
    ++known;
  }
  EXPECT_GT(known, 32);
  EXPECT_LE(known, 64);
}

TEST(WordTable, ThreadsShareIt) {
  WordTable table(256);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4000; ++i) {
        const int which = (i * (t + 1)) % 500;
        const std::string word = fmt::format("{}{}", std::string(which % 40, 'x'), which);
        const WordTable::Key key(Kind::kPiece, word);
        const auto ids = ids_in(table, Kind::kPiece, word);
        if (ids && *ids != std::vector<TokenId>{which, which + 1}) ++wrong;
        const WordToken tokens[] = {{which, 0, 1}, {which + 1, 1, 2}};
        if (!ids) table.put(key, tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(WordMemory, BeginsWithALongTextAndIsReplacedWhenWorn) {
  WordMemory memory;
  EXPECT_EQ(memory.table(100), nullptr);
  const auto table = memory.table(2000);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(memory.table(100), table);
  for (int i = 0; !table->is_worn(); ++i) {
    const WordToken token{i, 0, 1};
    table->put({Kind::kWord, fmt::format("w{}", i)}, {&token, 1});
  }
  const auto next = memory.table(100);
  EXPECT_NE(next, table);
  EXPECT_GT(next->slots(), table->slots());
  EXPECT_LE(memory.table(size_t{1} << 30)->slots(), WordMemory::kMostSlots);
}

}  // namespace
}  // namespace tare::text
