#include "text/tokenizer_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/json.h"
#include "text/unicode.h"

namespace tare::text {
namespace {

// A byte-level tokenizer with every part of the format that is not about size.
std::string small_file() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_to_char(static_cast<uint8_t>(byte)));
    vocab[text] = byte;
  }
  json::array merges;
  for (const auto& [left, right] : std::initializer_list<std::pair<const char*, const char*>>{
           {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"\xC4\xA0", "w"}, {"o", "r"}}) {
    merges.push_back(json::array{left, right});
    vocab[std::string(left) + right] = static_cast<int64_t>(vocab.size());
  }
  const auto bos = static_cast<int64_t>(vocab.size());
  json::object root{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       json::array{
           json::object{{"id", bos}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
           json::object{
               {"id", bos + 1}, {"content", "<tool>"}, {"special", false}, {"rstrip", true}, {"normalized", false}}}},
      {"normalizer", json::object{{"type", "NFC"}}},
      {"pre_tokenizer",
       json::object{{"type", "Sequence"},
                    {"pretokenizers", json::array{json::object{{"type", "Digits"}, {"individual_digits", true}},
                                                  json::object{{"type", "Split"},
                                                               {"pattern", json::object{{"Regex", "\\s+x"}}},
                                                               {"behavior", "Isolated"},
                                                               {"invert", false}},
                                                  json::object{{"type", "ByteLevel"},
                                                               {"add_prefix_space", false},
                                                               {"trim_offsets", true},
                                                               {"use_regex", true}}}}}},
      {"post_processor",
       json::object{{"type", "TemplateProcessing"},
                    {"single", json::array{json::object{{"SpecialToken", json::object{{"id", "<s>"}, {"type_id", 0}}}},
                                           json::object{{"Sequence", json::object{{"id", "A"}, {"type_id", 0}}}}}},
                    {"pair", json::array{}},
                    {"special_tokens", json::object{{"<s>", json::object{{"id", "<s>"},
                                                                         {"ids", json::array{bos}},
                                                                         {"tokens", json::array{"<s>"}}}}}}}},
      {"decoder", json::object{{"type", "ByteLevel"}}},
      {"model",
       json::object{
           {"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"vocab", vocab}, {"merges", merges}}}};
  return boost::json::serialize(root);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

// Ids that nothing fills, between tokens and before an added one: real files have them.
TEST(TokenizerJson, HolesAreNoTokens) {
  const std::string text = replaced(replaced(small_file(), R"("or":261)", R"("or":266)"), R"("id":263)", R"("id":270)");
  const auto tokenizer = load_tokenizer_json(text, "holes");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->vocab_size(), 271u);
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  // 261, 263, 264, 265 and 267, 268, 269.
  EXPECT_NE(tokenizer->warnings()[0].find("7 ids are no tokens and have no text, 261"), std::string::npos)
      << tokenizer->warnings()[0];
  EXPECT_EQ(tokenizer->encode("hello world")->ids, (std::vector<TokenId>{262, 259, 260, 266, 'l', 'd'}));
  EXPECT_EQ(tokenizer->encode("<tool>", {.add_special = false})->ids, (std::vector<TokenId>{270}));
  EXPECT_EQ(*tokenizer->decode(std::vector<TokenId>{261, 259, 265, 260, 268}), "hello w");
  EXPECT_EQ(*tokenizer->token_text(265), "");
  EXPECT_FALSE(tokenizer->is_special(265));
  IncrementalDecoder stream(*tokenizer);
  EXPECT_EQ(*stream.push(261), "");
  EXPECT_EQ(*stream.push(259), "hello");
}

TEST(TokenizerJson, SmallFile) {
  const auto tokenizer = load_tokenizer_json(small_file(), "small");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  // hell+o, " w", or, l, d after BOS: worked by hand from the merges.
  EXPECT_EQ(tokenizer->encode("hello world")->ids, (std::vector<TokenId>{262, 259, 260, 261, 'l', 'd'}));
  EXPECT_EQ(tokenizer->encode("<tool>  he", {.add_special = false})->ids, (std::vector<TokenId>{263, 256}));
  EXPECT_EQ(tokenizer->special().bos, 262);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_FALSE(tokenizer->decode(std::vector<TokenId>{264}).ok());
  EXPECT_FALSE(tokenizer->decode(std::vector<TokenId>{-1}).ok());
  EXPECT_FALSE(tokenizer->token_text(264).ok());
  EXPECT_FALSE(tokenizer->encode("\xFF").ok());
}

TEST(TokenizerJson, RefusesWhatDoesNotFit) {
  const std::string good = small_file();
  struct Case {
    const char* what;
    std::string text;
    const char* message;
  };
  const Case cases[] = {
      {"a merge of an unknown token", replaced(good, R"(["h","e"])", R"(["h","\u00e9\u00e9"])"), "merge"},
      {"a merge whose result is unknown", replaced(good, R"(["h","e"])", R"(["h","x"])"), "merge"},
      {"a merge twice", replaced(good, R"(["l","l"])", R"(["h","e"])"), "twice"},
      // "or" is then made by no merge and "hello" by two, each of them sound.
      {"a merge that makes another token",
       replaced(replaced(replaced(good, R"(["o","r"])", R"(["he","llo"])"), R"("Ġw":260)", R"("llo":260)"),
                R"(["Ġ","w"])", R"(["ll","o"])"),
       "merge"},
      {"a merge of three parts", replaced(good, R"(["h","e"])", R"(["h","e","e"])"), "malformed merge"},
      {"an id twice", replaced(good, R"("he":256)", R"("he":257)"), "one id"},
      {"a huge id", replaced(good, R"("or":261)", R"("or":16777215)"), "hole"},
      {"a negative id", replaced(good, R"("or":261)", R"("or":-1)"), "out of range"},
      {"an id of 2^40", replaced(good, R"("or":261)", R"("or":1099511627776)"), "out of range"},
      {"a token twice", replaced(good, R"("or":261)", R"("he":261)"), "twice"},
      {"an added token with another token's id", replaced(good, R"("id":262)", R"("id":5)"), "another token"},
      {"an added token twice", replaced(good, R"("content":"<tool>")", R"("content":"<s>")"), "twice"},
      {"an empty added token", replaced(good, R"("content":"<tool>")", R"("content":"")"), "empty"},
      {"a template id out of range", replaced(good, R"("ids":[262])", R"("ids":[300])"), "outside the vocabulary"},
      {"a template name that is not defined",
       replaced(good, R"("special_tokens":{"<s>")", R"("special_tokens":{"<t>")"), "special_tokens"},
      {"another version", replaced(good, R"("version":"1.0")", R"("version":"2.0")"), "version"},
      {"an unknown model", replaced(good, R"("type":"BPE")", R"("type":"WordPiece")"), "WordPiece"},
      {"an unknown normalizer", replaced(good, R"("type":"NFC")", R"("type":"Shout")"), "Shout"},
      {"an unknown pre-tokenizer", replaced(good, R"("type":"Digits")", R"("type":"Runes")"), "Runes"},
      {"an unknown decoder", replaced(good, R"("decoder":{"type":"ByteLevel"})", R"("decoder":{"type":"Morse"})"),
       "Morse"},
      {"dropout", replaced(good, R"("dropout":null)", R"("dropout":0.1)"), "dropout"},
      {"an unknown token that is not there", replaced(good, R"("unk_token":null)", R"("unk_token":"<u>")"), "<u>"},
      {"a pattern that does not compile", replaced(good, R"("\\s+x")", R"("(\\s+")"), "does not compile"},
      {"a list for the model", R"({"model": []})", "model"},
      {"no model", "{}", "model"},
      {"a list", "[]", "no object"},
      {"nothing", "", "JSON"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const auto tokenizer = load_tokenizer_json(c.text, "small");
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_NE(tokenizer.error().message().find(c.message), std::string::npos) << tokenizer.error().message();
  }
}

// Thousands of damaged files: each loads or says why not, and what loads works.
TEST(TokenizerJson, DamagedFiles) {
  const std::string good = small_file();
  std::mt19937 random(11);
  size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    const size_t changes = 1 + random() % 3;
    for (size_t i = 0; i < changes; ++i) {
      const size_t at = random() % text.size();
      const size_t bytes = std::min<size_t>(1 + random() % 20, text.size() - at);
      switch (random() % 6) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, bytes);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), bytes));
          break;
        case 3:
          text.resize(std::max<size_t>(1, at));
          break;
        case 4:
          text[at] = "0123456789{}[]\",:-"[random() % 18];
          break;
        default:
          std::swap(text[at], text[random() % text.size()]);
          break;
      }
    }
    const auto tokenizer = load_tokenizer_json(text, "damaged");
    if (!tokenizer.ok()) {
      ++refused;
      ASSERT_FALSE(tokenizer.error().message().empty());
      continue;
    }
    const auto encoded = tokenizer->encode("hello w\xC3\xB6rld 123  x <s><tool>  y");
    if (encoded.ok()) {
      EXPECT_TRUE(tokenizer->decode(encoded->ids).ok());
    }
  }
  EXPECT_GT(refused, 2000u);
}

}  // namespace
}  // namespace tare::text
