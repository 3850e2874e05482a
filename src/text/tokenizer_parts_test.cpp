// The parts of a tokenizer, each by cases worked out by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/charsmap.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/unigram.h"

namespace tare::text {
namespace {

using Texts = std::vector<std::string>;

TEST(Unicode, ScansUtf8ByTheTable) {
  EXPECT_FALSE(find_invalid_utf8("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80").has_value());
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1u);         // overlong
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_TRUE(scan_utf8("\xE4\xB8").incomplete);
  EXPECT_EQ(scan_utf8("\xE4\xB8x").bad, 2u);  // one maximal subpart
  EXPECT_EQ(utf8_lossy("a\xE4\xB8x\xFF\xE4"), "a\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Unicode, ByteAlphabetIsOneToOne) {
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(char_to_byte(byte_to_char(static_cast<uint8_t>(byte))), byte);
  EXPECT_EQ(byte_to_char(' '), 0x120u);
  EXPECT_EQ(char_to_byte(0x200), -1);
  EXPECT_EQ(char_to_byte(' '), -1);
}

// The classes of Unicode 16 over all code points, also where PCRE2's own tables are older.
TEST(Regex, CategoriesOfAllCodePoints) {
  const std::pair<const char*, uint32_t> categories[] = {
      {"L", kLetter}, {"M", kMark},   {"N", kNumber},    {"P", kPunctuation},  {"S", kSymbol},  {"Lu", kUpper},
      {"Lt", kTitle}, {"Ll", kLower}, {"Lm", kModifier}, {"Lo", kOtherLetter}, {"Nd", kDecimal}};
  std::string text;
  std::vector<uint32_t> classes;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    append_utf8(text, c);
    classes.resize(text.size(), char_classes(c));
  }
  for (const auto& [name, mask] : categories) {
    for (const char* form : {"\\P{{{}}}+", "[\\p{{{}}}]+"}) {
      const bool negated = std::string_view(form).starts_with("\\P");
      const auto regex = Regex::compile(fmt::format(fmt::runtime(form), name), RegexDialect::kOniguruma, "test");
      ASSERT_TRUE(regex.ok()) << regex.error().message();
      std::vector<RegexMatch> matches;
      ASSERT_TRUE(regex->find_all(text, 0, text.size(), matches).ok());
      size_t next = 0;
      size_t different = 0;
      for (size_t at = 0; at < text.size(); ++at) {
        while (next < matches.size() && at >= matches[next].end) ++next;
        const bool matched = next < matches.size() && at >= matches[next].begin;
        different += matched != (((classes[at] & mask) != 0) != negated);
      }
      EXPECT_EQ(different, 0u) << form << " " << name;
    }
  }
}

TEST(Regex, TranslatesWhatTheDialectsMeanDifferently) {
  const auto pieces = [](std::string_view pattern, RegexDialect dialect, const std::string& text) {
    const auto regex = Regex::compile(pattern, dialect, "test");
    EXPECT_TRUE(regex.ok()) << regex.error().message();
    std::vector<RegexMatch> matches;
    EXPECT_TRUE(regex->find_all(text, 0, text.size(), matches).ok());
    Texts out;
    for (const RegexMatch& match : matches) out.push_back(text.substr(match.begin, match.end - match.begin));
    return out;
  };
  EXPECT_EQ(pieces("\\p{N}{1,3}+", RegexDialect::kOniguruma, "12345"), (Texts{"12345"}));  // a repetition of it
  EXPECT_EQ(pieces("\\p{N}{1,3}+", RegexDialect::kRust, "12345"), (Texts{"123", "45"}));   // possessive
  EXPECT_EQ(pieces("a$", RegexDialect::kOniguruma, "a\na"), (Texts{"a", "a"}));            // at every line
  EXPECT_EQ(pieces("a$", RegexDialect::kRust, "a\na"), (Texts{"a"}));
  EXPECT_EQ(pieces("\\s+", RegexDialect::kOniguruma,
                   "a\xE1\xA0\x8E"
                   "b\xC2\x85"),
            (Texts{"\xC2\x85"}));                                                                 // U+180E is no space
  EXPECT_EQ(pieces(" ?[^(\\s|[.,!?])]+", RegexDialect::kOniguruma, "a, (b"), (Texts{"a", "b"}));  // nested class
  EXPECT_EQ(pieces("x*", RegexDialect::kOniguruma, "axxb"), (Texts{"", "xx", ""}));  // no empty match after one
  for (const char* bad : {"[a&&b]", "[[:alpha:]]", "(", "[a", "\\", "[^\\S]", "\\p{Nonsense}", "(?P<n>a)"}) {
    EXPECT_FALSE(Regex::compile(bad, RegexDialect::kOniguruma, "test").ok()) << bad;
  }
}

TEST(PreTokenizer, Behaviours) {
  PreTokenizerStep step;
  step.literal = "-";
  const std::string text = "the-final--countdown";
  const auto pieces = [&](SplitBehavior behavior) {
    step.behavior = behavior;
    std::vector<Piece> out;
    EXPECT_TRUE(split_pieces(step, text, {{0, static_cast<uint32_t>(text.size()), kNoToken}}, out).ok());
    Texts texts;
    for (const Piece& piece : out) texts.push_back(text.substr(piece.begin, piece.end - piece.begin));
    return texts;
  };
  EXPECT_EQ(pieces(SplitBehavior::kRemoved), (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::kIsolated), (Texts{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::kMergedWithPrevious), (Texts{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::kMergedWithNext), (Texts{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces(SplitBehavior::kContiguous), (Texts{"the", "-", "final", "--", "countdown"}));
}

TEST(Normalizer, KeepsTheAlignment) {
  AlignedText text;
  text.append_original("e\xCC\x81x\xC3\xA9", 10);  // e + acute, x, e-acute
  ASSERT_TRUE(normalize({{.kind = NormalizerStep::Kind::kNfc}}, text, 10).ok());
  EXPECT_EQ(text.text, "\xC3\xA9x\xC3\xA9");
  EXPECT_EQ(text.source_of(2, 3), (ByteRange{13, 14}));
  ASSERT_TRUE(normalize({{.kind = NormalizerStep::Kind::kNfd}}, text, 10).ok());
  EXPECT_EQ(text.text, "e\xCC\x81xe\xCC\x81");
  EXPECT_EQ(text.source_of(4, 7), (ByteRange{14, 16}));
  const Normalizer metaspace = {{.kind = NormalizerStep::Kind::kPrepend, .content = "_"},
                                {.kind = NormalizerStep::Kind::kReplace, .pattern = " ", .content = "_"}};
  EXPECT_EQ(*normalize_text(metaspace, "a b"), "_a_b");
  EXPECT_EQ(*normalize_text(metaspace, ""), "");
  EXPECT_TRUE(leaves_unchanged({{.kind = NormalizerStep::Kind::kNfc}}, "plain \xE4\xB8\xAD"));
  EXPECT_FALSE(leaves_unchanged({{.kind = NormalizerStep::Kind::kNfc}}, "e\xCC\x81"));
  EXPECT_FALSE(leaves_unchanged({{.kind = NormalizerStep::Kind::kNfc}}, "\xE2\x84\xAB"));  // the angstrom sign
}

TEST(AddedTokens, LongestAtTheLeftmostPlace) {
  const auto tokens = AddedTokens::create({{.id = 0, .content = "<a>", .special = true},
                                           {.id = 1, .content = "<a><b>"},
                                           {.id = 2, .content = "foo", .single_word = true},
                                           {.id = 3, .content = "|", .lstrip = true, .rstrip = true}},
                                          {}, "test");
  ASSERT_TRUE(tokens.ok());
  const auto found = [&](const std::string& text, bool as_text = false) {
    std::vector<Piece> out;
    tokens->find(text, 0, text.size(), false, as_text, out);
    std::string shown;
    for (const Piece& piece : out) {
      shown += "[" + text.substr(piece.begin, piece.end - piece.begin) + "]" +
               (piece.token == kNoToken ? "" : std::to_string(piece.token));
    }
    return shown;
  };
  EXPECT_EQ(found("x<a><b><a>"), "[x][<a><b>]1[<a>]0");
  EXPECT_EQ(found("x<a>y", true), "[x<a>y]");
  EXPECT_EQ(found("foo foobar"), "[foo]2[ foobar]");
  EXPECT_EQ(found("a  |  b"), "[a][  |  ]3[b]");
  EXPECT_EQ(found(""), "");
  EXPECT_FALSE(AddedTokens::create({{.id = 0, .content = ""}}, {}, "test").ok());
}

TEST(Decoder, StepsOfTheLibrary) {
  using Kind = DecoderStep::Kind;
  const Decoder llama = {{.kind = Kind::kReplace, .pattern = "_", .content = " "},
                         {.kind = Kind::kByteFallback},
                         {.kind = Kind::kFuse},
                         {.kind = Kind::kStrip, .content = " ", .start = 1}};
  EXPECT_EQ(*decode_tokens(llama, {"_a", "<0xE4>", "<0xB8>", "<0xAD>", "_b"}), "a\xE4\xB8\xAD b");
  EXPECT_EQ(*decode_tokens(llama, {"<0xE4>", "<0xB8>", "x"}), "\xEF\xBF\xBD\xEF\xBF\xBDx");  // one for each byte
  EXPECT_EQ(*decode_tokens({{.kind = Kind::kByteLevel}}, {"\xC4\xA0"
                                                          "a",
                                                          "\xC3\xA4", "\xC2\xB8"}),
            " a\xEF\xBF\xBD");  // E4 B8
  EXPECT_EQ(*decode_tokens({{.kind = Kind::kMetaspace, .content = "_"}}, {"_a_", "_b"}), "a b");
  EXPECT_EQ(*decode_tokens({}, {"a", "b"}), "a b");
  EXPECT_EQ(*decode_tokens(llama, {}), "");
}

// The plain loop of the definition: the lowest rank first, the leftmost of equals.
std::vector<TokenId> merge_by_definition(std::vector<TokenId> word, const std::vector<std::array<TokenId, 3>>& merges) {
  for (;;) {
    size_t best_rank = merges.size();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank][0] == word[i] && merges[rank][1] == word[i + 1]) {
          best_rank = rank;
          best_at = i;
        }
      }
    }
    if (best_rank == merges.size()) return word;
    word[best_at] = merges[best_rank][2];
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(Bpe, ShortAndLongWordsFollowTheDefinition) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::array<TokenId, 3>> ids;
  std::mt19937 random(3);
  while (tokens.size() < 40) {
    const size_t left = random() % tokens.size();
    const size_t right = random() % tokens.size();
    const std::string joined = tokens[left] + tokens[right];
    if (std::find(tokens.begin(), tokens.end(), joined) != tokens.end()) continue;
    merges.emplace_back(tokens[left], tokens[right]);
    ids.push_back({static_cast<TokenId>(left), static_cast<TokenId>(right), static_cast<TokenId>(tokens.size())});
    tokens.push_back(joined);
  }
  const auto vocabulary = Vocabulary::create(tokens, "test");
  ASSERT_TRUE(vocabulary.ok());
  const auto bpe = Bpe::from_merges(*vocabulary, merges, {}, "test");
  ASSERT_TRUE(bpe.ok());
  for (int round = 0; round < 500; ++round) {
    std::string text;
    std::vector<TokenId> word;
    for (size_t i = 0, n = 1 + random() % 90; i < n; ++i) {
      word.push_back(static_cast<TokenId>(random() % 3));
      text += tokens[word.back()];
    }
    std::vector<TokenSpan> out;
    size_t dropped = 0;
    bpe->encode_chars(*vocabulary, text, out, dropped);
    std::vector<TokenId> found;
    for (const TokenSpan& span : out) found.push_back(span.id);
    ASSERT_EQ(found, merge_by_definition(word, ids)) << text;
  }
}

TEST(Unigram, BestPathAndUnknowns) {
  const Texts tokens = {"<unk>", "a", "b", "c", "d", "cd", "ab", "abc", "abcd"};
  const auto vocabulary = Vocabulary::create(tokens, "test");
  ASSERT_TRUE(vocabulary.ok());
  const auto model =
      Unigram::create(*vocabulary, {0, 0, 0, 0, 0, 1, 2, 5, 10}, std::vector<bool>(9, true), {.unknown = 0}, "test");
  ASSERT_TRUE(model.ok());
  std::vector<TokenSpan> out;
  ASSERT_TRUE(model->encode(*vocabulary, "abcdacdxx", out).ok());
  std::vector<TokenId> ids;
  for (const TokenSpan& span : out) ids.push_back(span.id);
  EXPECT_EQ(ids, (std::vector<TokenId>{8, 1, 5, 0}));
  EXPECT_EQ(out.back().bytes, 2u);
  const auto without =
      Unigram::create(*vocabulary, {0, 0, 0, 0, 0, 1, 2, 5, 10}, std::vector<bool>(9, true), {}, "test");
  EXPECT_FALSE(without->encode(*vocabulary, "x", out).ok());
  EXPECT_FALSE(
      Unigram::create(*vocabulary, {0, 0, 0, 0, 0, 1, 2, 5, NAN}, std::vector<bool>(9, true), {}, "test").ok());
  EXPECT_FALSE(Unigram::create(*vocabulary, {0}, std::vector<bool>(9, true), {}, "test").ok());
}

TEST(Charsmap, RefusesDamage) {
  const auto blob = [](std::initializer_list<uint32_t> units, std::string replacements, uint32_t bytes) {
    std::string out;
    const auto put = [&](uint32_t v) {
      for (int i = 0; i < 4; ++i) out += static_cast<char>(v >> (8 * i) & 0xFF);
    };
    put(bytes);
    for (const uint32_t unit : units) put(unit);
    return out + replacements;
  };
  const std::string zero(1, '\0');
  // Root at offset 1<<10; label 'A' (0x41) at 1 ^ 0x41 = 0x40 would need 65 units: a trie of the root alone has no
  // rule.
  EXPECT_TRUE(Charsmap::create(blob({1u << 10}, "x" + zero, 4), "t").ok());
  EXPECT_EQ(Charsmap::create(blob({1u << 10}, "x" + zero, 4), "t")->longest("A", 0).bytes, 0u);
  EXPECT_FALSE(Charsmap::create("", "t").ok());
  EXPECT_FALSE(Charsmap::create(blob({1u << 10}, "x" + zero, 400), "t").ok());    // longer than the file
  EXPECT_FALSE(Charsmap::create(blob({1u << 10}, "x" + zero, 3), "t").ok());      // no whole units
  EXPECT_FALSE(Charsmap::create(blob({1u << 10}, "x", 4), "t").ok());             // not terminated
  EXPECT_FALSE(Charsmap::create(blob({1u << 10}, "\xFF" + zero, 4), "t").ok());   // not UTF-8
  EXPECT_FALSE(Charsmap::create(blob({1u << 31 | 9}, "x" + zero, 4), "t").ok());  // points outside
}

}  // namespace
}  // namespace tare::text
