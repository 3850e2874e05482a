#include "text/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "text/golden_rows_for_tests.h"
#include "text/unicode.h"

namespace tare::text {
namespace {

using testing::for_each_row;
using testing::ids_of;
using testing::text_of;

// The metadata of a file that is known to be good; the reader that trusts nothing is in io.
class Metadata {
 public:
  explicit Metadata(const std::string& bytes) : bytes_(bytes) {
    at_ = 16;  // magic, version, number of tensors
    const auto pairs = number<uint64_t>();
    for (uint64_t i = 0; i < pairs; ++i) {
      const std::string key = string();
      read(key, number<uint32_t>());
    }
  }

  std::map<std::string, std::string> strings;
  std::map<std::string, std::vector<std::string>> string_lists;
  std::map<std::string, double> numbers;
  std::map<std::string, std::vector<double>> number_lists;

 private:
  template <class T>
  T number() {
    T out;
    std::memcpy(&out, bytes_.data() + at_, sizeof out);
    at_ += sizeof out;
    return out;
  }
  std::string string() {
    const auto size = number<uint64_t>();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  double scalar(uint32_t type) {
    switch (type) {
      case 0:
        return number<uint8_t>();
      case 1:
        return number<int8_t>();
      case 2:
        return number<uint16_t>();
      case 3:
        return number<int16_t>();
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>();
      case 10:
        return static_cast<double>(number<uint64_t>());
      case 11:
        return static_cast<double>(number<int64_t>());
      default:
        return number<double>();
    }
  }
  void read(const std::string& key, uint32_t type) {
    if (type == 8) {
      strings[key] = string();
    } else if (type == 9) {
      const auto element = number<uint32_t>();
      const auto size = number<uint64_t>();
      for (uint64_t i = 0; i < size; ++i) {
        if (element == 8) {
          string_lists[key].push_back(string());
        } else {
          number_lists[key].push_back(scalar(element));
        }
      }
    } else {
      numbers[key] = scalar(type);
    }
  }

  const std::string& bytes_;
  size_t at_ = 0;
};

GgufVocabulary vocabulary_of(const std::string& bytes) {
  const Metadata data(bytes);
  const std::string prefix = "tokenizer.ggml.";
  const auto number = [&](const std::string& key) -> std::optional<int64_t> {
    const auto found = data.numbers.find(prefix + key);
    return found == data.numbers.end() ? std::nullopt : std::optional<int64_t>(static_cast<int64_t>(found->second));
  };
  const auto flag = [&](const std::string& key) -> std::optional<bool> {
    const auto found = number(key);
    return found ? std::optional<bool>(*found != 0) : std::nullopt;
  };
  GgufVocabulary out;
  const auto text = [&](const std::string& key) {
    const auto found = data.strings.find(key);
    return found == data.strings.end() ? std::string() : found->second;
  };
  out.model = text(prefix + "model");
  if (data.strings.contains(prefix + "pre")) out.pre = text(prefix + "pre");
  out.name = text("general.name");
  const auto list = [&](const std::string& key) {
    const auto found = data.string_lists.find(prefix + key);
    return found == data.string_lists.end() ? std::vector<std::string>() : found->second;
  };
  out.tokens = list("tokens");
  out.merges = list("merges");
  if (const auto found = data.number_lists.find(prefix + "scores"); found != data.number_lists.end()) {
    for (const double score : found->second) out.scores.push_back(static_cast<float>(score));
  }
  if (const auto found = data.number_lists.find(prefix + "token_type"); found != data.number_lists.end()) {
    for (const double type : found->second) out.token_type.push_back(static_cast<int32_t>(type));
  }
  out.bos_id = number("bos_token_id");
  out.eos_id = number("eos_token_id");
  out.unknown_id = number("unknown_token_id");
  out.padding_id = number("padding_token_id");
  out.add_bos = flag("add_bos_token");
  out.add_eos = flag("add_eos_token");
  out.add_space_prefix = flag("add_space_prefix");
  out.remove_extra_whitespaces = flag("remove_extra_whitespaces");
  return out;
}

class GgufGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufGolden, VocabularyIsExact) {
  TARE_NEEDS_FIXTURE(path, std::string("tokenizers/") + GetParam());
  const auto loaded =
      load_gguf_vocabulary(vocabulary_of(tare::testing::read_fixture(path + "/vocab.gguf")), GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  size_t rows = 0;
  for_each_row(path + "/goldens.jsonl", [&](const json::object& row) {
    SCOPED_TRACE(text_of(row, "id") + ": " + text_of(row, "text").substr(0, 60));
    ++rows;
    const auto ids = ids_of(row.at("ids"));
    const auto encoded = loaded->encode(text_of(row, "text"), {.add_special = false});
    ASSERT_TRUE(encoded.ok());
    EXPECT_EQ(encoded->ids, ids);
    EXPECT_EQ(loaded->encode(text_of(row, "text"))->ids, ids_of(row.at("ids_special")));
    EXPECT_EQ(loaded->encode(text_of(row, "text"), {.add_special = false, .specials_as_text = true})->ids,
              row.contains("ids_plain") ? ids_of(row.at("ids_plain")) : ids);
    EXPECT_EQ(*loaded->decode(ids), text_of(row, "decode"));
    EXPECT_EQ(*loaded->decode(ids, true), text_of(row, "decode_skip"));
    for (size_t i = 0; i < ids.size() && encoded->ids == ids; ++i) {
      const auto range = ids_of(row.at("offsets").get_array()[i]);
      EXPECT_EQ(encoded->offsets[i].begin, static_cast<uint32_t>(range[0]));
      EXPECT_EQ(encoded->offsets[i].end, static_cast<uint32_t>(range[1]));
    }
  });
  EXPECT_GT(rows, 100u);
}

TEST(GgufVocabulary, RefusesByName) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.tokens = {"a", "b", "ab"};
  vocabulary.token_type = {1, 1, 1};
  vocabulary.merges = {"a b"};
  const auto message = [](const GgufVocabulary& from) {
    const auto tokenizer = load_gguf_vocabulary(from, "test");
    return tokenizer.ok() ? std::string() : tokenizer.error().message();
  };
  EXPECT_NE(message(vocabulary).find("does not name its pre-tokenizer"), std::string::npos);
  vocabulary.pre = "somebodys-bpe";
  EXPECT_NE(message(vocabulary).find("somebodys-bpe"), std::string::npos);
  vocabulary.pre = "gpt-2";
  EXPECT_EQ(message(vocabulary), "");
  GgufVocabulary bad = vocabulary;
  bad.model = "rwkv";
  EXPECT_NE(message(bad).find("rwkv"), std::string::npos);
  bad = vocabulary;
  bad.merges = {"a c"};
  EXPECT_NE(message(bad).find("merge"), std::string::npos);
  bad = vocabulary;
  bad.token_type = {1, 1};
  EXPECT_NE(message(bad).find("token_type"), std::string::npos);
  bad = vocabulary;
  bad.eos_id = 3;
  EXPECT_NE(message(bad).find("EOS"), std::string::npos);
  bad = vocabulary;
  bad.tokens[1] = "a";
  EXPECT_NE(message(bad).find("two ids"), std::string::npos);
  bad = vocabulary;
  bad.add_bos = true;
  EXPECT_NE(message(bad).find("BOS"), std::string::npos);
}

// Phi-3's converter fills the vocabulary with tokens of the unknown type and makes <unk> a control token.
TEST(GgufVocabulary, PaddingOfTheUnknownTypeIsNoText) {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", "[PAD5]", "[PAD6]"};
  vocabulary.scores = {-1000, -1000, -1000, -1, -2, -10000, -10000};
  vocabulary.token_type = {3, 3, 3, 1, 1, 2, 2};
  vocabulary.unknown_id = 0;
  vocabulary.bos_id = 1;
  const auto tokenizer = load_gguf_vocabulary(vocabulary, "test");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("a[PAD5]a")->ids, (std::vector<TokenId>{1, 3, 4, 0, 4}));
  EXPECT_EQ(tokenizer->encode("a", {.add_special = false})->ids, (std::vector<TokenId>{3, 4}));
}

// Every pre-tokenizer of the table compiles and cuts text without losing any of it.
TEST(GgufVocabulary, EveryPreTokenizerWorks) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_to_char(static_cast<uint8_t>(byte)));
    vocabulary.tokens.push_back(text);
  }
  vocabulary.tokens.push_back("ab");
  vocabulary.merges = {"a b"};
  vocabulary.bos_id = 0;
  const std::string text = "I'm  Ab 1234567 x\r\n\n\t \xE4\xB8\xAD\xE6\x96\x87\xEF\xBC\x8C!? \xC3\xA9";
  for (const std::string_view name : known_gguf_pre_tokenizers()) {
    if (name == "gemma4" || name == "sarvam-moe") continue;  // characters, not bytes
    SCOPED_TRACE(std::string(name));
    vocabulary.pre = std::string(name);
    const auto tokenizer = load_gguf_vocabulary(vocabulary, "test");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    const auto encoded = tokenizer->encode(text, {.add_special = false});
    ASSERT_TRUE(encoded.ok()) << encoded.error().message();
    EXPECT_EQ(*tokenizer->decode(encoded->ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufGolden,
                         ::testing::Values("smollm2", "gpt2", "llama3", "qwen3", "falcon", "llama2", "gemma-like-a"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) {
                             if (c == '-') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace tare::text
