#include "text/scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/regex.h"
#include "text/unicode.h"

namespace tare::text {
namespace {

// Pieces of text that the patterns treat apart, put together at random.
constexpr const char* kBits[] = {"a",
                                 "Z",
                                 "s",
                                 "S",
                                 "T",
                                 "ll",
                                 "LL",
                                 "re",
                                 "Ve",
                                 "d",
                                 "M",
                                 "'",
                                 "'s",
                                 "'LL",
                                 "'\xC5\xBF",
                                 "0",
                                 "7",
                                 "12345",
                                 " ",
                                 "  ",
                                 "\n",
                                 "\r",
                                 "\r\n",
                                 "\t",
                                 "\xC2\xA0",
                                 "\xE3\x80\x80",
                                 "\xE2\x80\xA8",
                                 "\xC2\x85",
                                 "\xE1\xA0\x8E",
                                 "/",
                                 ".",
                                 ",",
                                 "!?",
                                 "-",
                                 "$",
                                 "\xC3\xA9",
                                 "\xC3\x89",
                                 "\xC7\x85",
                                 "\xCC\x81",
                                 "e\xCC\x81",
                                 "\xE0\xA4\x95\xE0\xA5\x8D",
                                 "\xE4\xB8\xAD",
                                 "\xE6\x96\x87",
                                 "\xD9\xA3",
                                 "\xC2\xBD",
                                 "\xE2\x85\xA7",
                                 "\xCA\xB0",
                                 "\xF0\x9F\x98\x80",
                                 "\xE2\x80\x8D",
                                 "\xD7\x90"};

std::vector<RegexMatch> scanned(const Scanner& scanner, const std::string& text) {
  std::vector<RegexMatch> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = scan(scanner, text.data(), at, text.size());
    if (end > at) {
      out.push_back({at, end});
      at = end;
    } else {
      ++at;
    }
  }
  return out;
}

TEST(Scanner, GivesTheMatchesOfItsPattern) {
  std::mt19937 random(7);
  for (const std::string_view pattern : scanner_patterns()) {
    SCOPED_TRACE(std::string(pattern));
    const auto scanner = find_scanner(pattern);
    ASSERT_TRUE(scanner.has_value());
    const auto regex = Regex::compile(pattern, RegexDialect::kOniguruma, "test");
    ASSERT_TRUE(regex.ok()) << regex.error().message();
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      const size_t bits = 1 + random() % 12;
      for (size_t i = 0; i < bits; ++i) text += kBits[random() % std::size(kBits)];
      std::vector<RegexMatch> expected;
      ASSERT_TRUE(regex->find_all(text, 0, text.size(), expected).ok());
      const std::vector<RegexMatch> found = scanned(*scanner, text);
      ASSERT_EQ(found.size(), expected.size()) << "'" << text << "'";
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].begin, expected[i].begin) << "'" << text << "'";
        ASSERT_EQ(found[i].end, expected[i].end) << "'" << text << "'";
      }
    }
  }
}

// Every character beside others.
TEST(Scanner, KnowsEveryCharacter) {
  const auto pattern = scanner_patterns()[0];
  const auto scanner = find_scanner(pattern);
  const auto regex = Regex::compile(pattern, RegexDialect::kOniguruma, "test");
  ASSERT_TRUE(regex.ok());
  std::vector<RegexMatch> expected;
  size_t different = 0;
  for (char32_t c = 0; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "a ";
    append_utf8(text, c);
    text += "b1";
    expected.clear();
    ASSERT_TRUE(regex->find_all(text, 0, text.size(), expected).ok());
    const auto found = scanned(*scanner, text);
    bool same = found.size() == expected.size();
    for (size_t i = 0; same && i < found.size(); ++i) same = found[i].end == expected[i].end;
    different += !same;
  }
  EXPECT_EQ(different, 0u);
}

TEST(Scanner, WorkedByHand) {
  const auto pieces = [](std::string_view pattern, const std::string& text) {
    std::vector<std::string> out;
    for (const RegexMatch& match : scanned(*find_scanner(pattern), text))
      out.push_back(text.substr(match.begin, match.end - match.begin));
    return out;
  };
  using Pieces = std::vector<std::string>;
  const auto patterns = scanner_patterns();
  EXPECT_EQ(pieces(patterns[0], "I'll  go  1234 !!\n"), (Pieces{"I", "'ll", " ", " go", " ", " 1234", " !!", "\n"}));
  EXPECT_EQ(pieces(patterns[2], "I'LL go 12345!!\n\n  x"),
            (Pieces{"I", "'LL", " go", " ", "123", "45", "!!\n\n", " ", " x"}));
  EXPECT_EQ(pieces(patterns[7], "fooBar'S a/b"), (Pieces{"foo", "Bar'S", " a", "/b"}));
}

}  // namespace
}  // namespace tare::text
