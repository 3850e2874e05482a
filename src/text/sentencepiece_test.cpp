#include "text/sentencepiece.h"

#include <gtest/gtest.h>

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
