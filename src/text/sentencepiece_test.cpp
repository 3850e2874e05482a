#include "text/sentencepiece.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "text/golden_rows_for_tests.h"

namespace tare::text {
namespace {

using testing::for_each_row;
using testing::ids_of;
using testing::text_of;

// Rows in which SentencePiece and the tokenizers library disagree (fixtures/tokenizers/cross_check.json).
std::set<std::string> disagreements(const std::string& root, const std::string& name) {
  std::set<std::string> out;
  const auto document = json::parse(tare::testing::read_fixture(root + "/tokenizers/cross_check.json"), "cross_check");
  EXPECT_TRUE(document.ok());
  for (const auto& row : document->get_object().at(name).get_object().at("encode_disagree").get_array()) {
    out.insert(text_of(row.get_object(), "id"));
  }
  return out;
}

class SentencePieceGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceGolden, ModelIsExact) {
  TARE_NEEDS_FIXTURE(path, std::string("tokenizers/") + GetParam());
  const auto loaded = load_sentencepiece_model(tare::testing::read_fixture(path + "/tokenizer.model"), GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  const std::set<std::string> differ = disagreements(*path_root_, GetParam());
  size_t exact = 0;
  for_each_row(path + "/goldens.jsonl", [&](const json::object& row) {
    SCOPED_TRACE(text_of(row, "id") + ": " + text_of(row, "text").substr(0, 60));
    if (differ.contains(text_of(row, "id"))) return;
    const auto ids = ids_of(row.at("ids"));
    const auto encoded = loaded->encode(text_of(row, "text"), {.add_special = false});
    ASSERT_TRUE(encoded.ok());
    EXPECT_EQ(encoded->ids, ids);
    EXPECT_EQ(loaded->encode(text_of(row, "text"))->ids, ids_of(row.at("ids_special")));
    EXPECT_EQ(*loaded->decode(ids), text_of(row, "decode"));
    // The model file calls some markers user-defined that its tokenizer.json calls special.
    if (!row.contains("ids_plain")) {
      EXPECT_EQ(*loaded->decode(ids, true), text_of(row, "decode_skip"));
    }
    for (size_t i = 0; i < ids.size() && encoded->ids == ids; ++i) {
      const auto range = ids_of(row.at("offsets").get_array()[i]);
      EXPECT_EQ(encoded->offsets[i].begin, static_cast<uint32_t>(range[0]));
      EXPECT_EQ(encoded->offsets[i].end, static_cast<uint32_t>(range[1]));
    }
    ++exact;
  });
  EXPECT_GT(exact, 90u);
}

// A model file by hand: |tag 1: piece {1: text, 2: score f32, 3: type}|...|tag 2: trainer {3: model type}|
class Wire {
 public:
  Wire& bytes(int tag, std::string_view text) {
    out_ += static_cast<char>(tag << 3 | 2);
    varint(text.size());
    out_ += text;
    return *this;
  }
  Wire& number(int tag, uint64_t value) {
    out_ += static_cast<char>(tag << 3);
    varint(value);
    return *this;
  }
  Wire& real(int tag, float value) {
    out_ += static_cast<char>(tag << 3 | 5);
    char raw[4];
    std::memcpy(raw, &value, 4);
    out_.append(raw, 4);
    return *this;
  }
  const std::string& text() const { return out_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  std::string out_;
};

std::string small_model(uint64_t model_type) {
  Wire model;
  const auto piece = [&](std::string_view text, float score, uint64_t type) {
    model.bytes(1, Wire().bytes(1, text).real(2, score).number(3, type).text());
  };
  piece("<unk>", 0, 2);
  piece("<s>", 0, 3);
  piece("</s>", 0, 3);
  piece("\xE2\x96\x81", -4, 1);
  piece("a", -5, 1);
  piece("b", -6, 1);
  piece("ab", -1, 1);
  piece(
      "\xE2\x96\x81"
      "ab",
      -2, 1);
  piece("[x]", 0, 4);
  model.bytes(2, Wire().number(3, model_type).text());
  return model.text();
}

TEST(SentencePiece, SmallModels) {
  for (const uint64_t type : {1, 2}) {
    SCOPED_TRACE(type);
    const auto tokenizer = load_sentencepiece_model(small_model(type), "small");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    EXPECT_EQ(tokenizer->encode("ab  ab")->ids, (std::vector<TokenId>{1, 7, 7}));  // spaces are shortened
    EXPECT_EQ(tokenizer->encode("abzz[x]", {.add_special = false})->ids, (std::vector<TokenId>{7, 0, 8}));
    EXPECT_EQ(*tokenizer->decode(std::vector<TokenId>{1, 7, 7}, true), "ab ab");
  }
  EXPECT_FALSE(load_sentencepiece_model(small_model(3), "small").ok());  // words
  EXPECT_FALSE(load_sentencepiece_model("", "small").ok());
}

TEST(SentencePiece, DamagedModels) {
  std::mt19937 random(5);
  size_t refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = small_model(1 + static_cast<uint64_t>(random() % 2));
    for (size_t i = 0, n = 1 + random() % 3; i < n; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.resize(std::max<size_t>(1, at));
          break;
        case 2:
          bytes.insert(at, 1 + random() % 5, static_cast<char>(random()));
          break;
        default:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
          break;
      }
    }
    const auto tokenizer = load_sentencepiece_model(bytes, "damaged");
    if (!tokenizer.ok()) {
      ++refused;
      continue;
    }
    const auto encoded = tokenizer->encode("ab [x] <s>\xC3\xA9 zz");
    if (encoded.ok()) {
      EXPECT_TRUE(tokenizer->decode(encoded->ids).ok());
    }
  }
  EXPECT_GT(refused, 1000u);
}

INSTANTIATE_TEST_SUITE_P(All, SentencePieceGolden, ::testing::Values("llama2", "mistral-v3", "gemma-like-a"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) {
                             if (c == '-') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace tare::text
