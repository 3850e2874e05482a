#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "text/golden_rows_for_tests.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_state.h"

namespace tare::text {
namespace {

using json::object;
using json::value;
using testing::for_each_row;
using testing::ids_of;

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

// Texts and answers of the tokenizers library (fixtures/tokenizers/README.md).
TEST_P(TokenizerGolden, TokenizerJsonIsExact) {
  TARE_NEEDS_FIXTURE(path, std::string("tokenizers/") + GetParam());
  const auto loaded = load_tokenizer_json(tare::testing::read_fixture(path + "/tokenizer.json"), GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  const Tokenizer& tokenizer = *loaded;
  size_t rows = 0;
  for_each_row(path + "/goldens.jsonl", [&](const object& row) {
    ++rows;
    const std::string id(row.at("id").get_string());
    const std::string text(row.at("text").get_string());
    SCOPED_TRACE(id + ": " + text.substr(0, 100));
    const auto encoded = tokenizer.encode(text, {.add_special = false});
    ASSERT_TRUE(encoded.ok()) << encoded.error().message();
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    EXPECT_EQ(encoded->ids, ids);
    std::vector<ByteRange> offsets;
    for (const value& range : row.at("offsets").get_array()) {
      const auto pair = ids_of(range);
      offsets.push_back({static_cast<uint32_t>(pair[0]), static_cast<uint32_t>(pair[1])});
    }
    if (encoded->ids == ids) {
      ASSERT_EQ(encoded->offsets.size(), offsets.size());
      for (size_t i = 0; i < offsets.size(); ++i) {
        EXPECT_TRUE(encoded->offsets[i] == offsets[i])
            << "token " << i << ": [" << encoded->offsets[i].begin << "," << encoded->offsets[i].end << ") for ["
            << offsets[i].begin << "," << offsets[i].end << ")";
      }
    }
    const std::vector<TokenId> special = ids_of(row.at("ids_special"));
    EXPECT_EQ(tokenizer.encode(text)->ids, special);
    EXPECT_EQ(tokenizer.encode(text, {.add_special = false, .specials_as_text = true})->ids,
              row.contains("ids_plain") ? ids_of(row.at("ids_plain")) : ids);
    EXPECT_EQ(*tokenizer.decode(ids), std::string(row.at("decode").get_string()));
    EXPECT_EQ(*tokenizer.decode(ids, true), std::string(row.at("decode_skip").get_string()));
    EXPECT_EQ(*tokenizer.decode(special), std::string(row.at("decode_special").get_string()));
    EXPECT_EQ(*tokenizer.decode(special, true), std::string(row.at("decode_special_skip").get_string()));
    IncrementalDecoder decoder(tokenizer);
    const auto& increments = row.at("inc").get_array();
    ASSERT_EQ(increments.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(*decoder.push(ids[i]), std::string(increments[i].get_string())) << "increment " << i;
    }
    EXPECT_EQ(decoder.finish(), std::string(row.at("inc_tail").get_string()));
  });
  EXPECT_GT(rows, 100u);
  for_each_row(path + "/decode.jsonl", [&](const object& row) {
    SCOPED_TRACE(std::string(row.at("id").get_string()));
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    EXPECT_EQ(*tokenizer.decode(ids), std::string(row.at("decode").get_string()));
    EXPECT_EQ(*tokenizer.decode(ids, true), std::string(row.at("decode_skip").get_string()));
  });
}

// A long text cut into words gives what it gives in one piece.
TEST_P(TokenizerGolden, WordsChangeNothing) {
  TARE_NEEDS_FIXTURE(path, std::string("tokenizers/") + GetParam());
  const auto loaded = load_tokenizer_json(tare::testing::read_fixture(path + "/tokenizer.json"), GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_TRUE(loaded->state().cuts_into_words);
  auto state = std::make_shared<TokenizerState>(loaded->state());
  state->cuts_into_words = false;
  const Tokenizer in_one_piece(std::move(state));
  std::vector<std::string> bits = {" ",
                                   " ",
                                   " ",
                                   "  ",
                                   "a",
                                   "word",
                                   "The",
                                   ".",
                                   "12",
                                   "\n",
                                   "_",
                                   "\xE2\x96\x81",
                                   "(",
                                   "'s",
                                   "\xC3\xA9",
                                   "\xCC\x81",
                                   "\xD9\x80",
                                   "\xD8\x80",
                                   "\xE4\xB8\xAD",
                                   "\xF0\x9F\x98\x80",
                                   "\xC2\xA0",
                                   "\xEF\xAC\x81",
                                   "<0x41>"};
  for (size_t id = 0; id < loaded->vocab_size(); ++id) {
    if (loaded->is_special(static_cast<TokenId>(id))) bits.emplace_back(*loaded->token_text(static_cast<TokenId>(id)));
    if (bits.size() > 40) break;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    while (text.size() < 600) text += bits[random() % bits.size()];
    for (const bool as_text : {false, true}) {
      const auto found = loaded->encode(text, {.specials_as_text = as_text});
      const auto expected = in_one_piece.encode(text, {.specials_as_text = as_text});
      ASSERT_TRUE(found.ok() && expected.ok());
      ASSERT_EQ(found->ids, expected->ids) << text;
      ASSERT_TRUE(found->offsets == expected->offsets) << text;
      ASSERT_EQ(found->dropped_bytes, expected->dropped_bytes);
    }
  }
}

// No quadratic case: a text of one character takes far less than the 10^12 steps of one (minutes).
TEST_P(TokenizerGolden, OneMegabyteOfOneCharacterIsLinear) {
  TARE_NEEDS_FIXTURE(path, std::string("tokenizers/") + GetParam());
  const auto loaded = load_tokenizer_json(tare::testing::read_fixture(path + "/tokenizer.json"), GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  for (const std::string_view character : {"a", " ", "\n", "\xE4\xB8\xAD"}) {
    std::string text;
    while (text.size() < 1'000'000) text += character;
    const std::clock_t start = std::clock();
    const auto encoding = loaded->encode(text);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_TRUE(encoding.ok()) << encoding.error().message();
    EXPECT_LT(seconds, 5.0) << "of '" << character << "'";
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden,
                         ::testing::Values("smollm2", "gpt2", "phi-2", "llama3", "qwen3", "falcon", "llama2",
                                           "mistral-v3", "gemma-like-a", "t5-small"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) {
                             if (c == '-') c = '_';
                           }
                           return name;
                         });

// Another set of answers for the demo model, from transformers.
TEST(Tokenizer, SmolLm2Texts) {
  TARE_NEEDS_FIXTURE(path, "smollm2/tokens.json");
  const auto loaded =
      load_tokenizer_json(tare::testing::read_fixture(*path_root_ + "/tokenizers/smollm2/tokenizer.json"), "smollm2");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  const auto document = json::parse(tare::testing::read_fixture(path), path);
  ASSERT_TRUE(document.ok());
  for (const value& entry : document->get_object().at("texts").get_array()) {
    const object& row = entry.get_object();
    const std::string text(row.at("text").get_string());
    SCOPED_TRACE(std::string(row.at("name").get_string()));
    const auto ids = loaded->encode(text)->ids;
    EXPECT_EQ(ids, ids_of(row.at("ids")));
    EXPECT_EQ(loaded->encode(text, {.specials_as_text = true})->ids, ids_of(row.at("ids_specials_as_text")));
    EXPECT_EQ(*loaded->decode(ids), std::string(row.at("decoded").get_string()));
    EXPECT_EQ(*loaded->decode(ids, true), std::string(row.at("decoded_skip_special").get_string()));
  }
}

}  // namespace
}  // namespace tare::text
