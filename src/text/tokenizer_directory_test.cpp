#include "text/tokenizer_directory.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "testing/fixtures.h"

namespace tare::text {
namespace {

constexpr const char* kSmall = R"({"version": "1.0", "added_tokens": [
  {"id": 4, "content": "<s>", "special": true}, {"id": 5, "content": "</s>", "special": true}],
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})";

std::string folder_with(const std::string& name, const std::vector<std::pair<std::string, std::string>>& files) {
  const std::string folder = tare::testing::scratch_directory("tokenizer-directory-" + name);
  for (const auto& [file, text] : files) EXPECT_TRUE(write_file_atomically(folder + "/" + file, text).ok());
  return folder;
}

TEST(TokenizerDirectory, RolesComeFromTheConfig) {
  const std::string folder =
      folder_with("roles", {{"tokenizer.json", kSmall},
                            {"tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})"}});
  const auto tokenizer = load_tokenizer_from_directory(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->source(), folder + "/tokenizer.json");
  EXPECT_EQ(tokenizer->special().bos, 4);
  EXPECT_EQ(tokenizer->special().eos, 5);
  EXPECT_TRUE(tokenizer->warnings().empty());
}

TEST(TokenizerDirectory, ContradictionsAreSaid) {
  const std::string folder =
      folder_with("contradictions",
                  {{"tokenizer.json", kSmall},
                   {"tokenizer_config.json", R"({"bos_token": "<s>", "pad_token": "<pad>", "add_bos_token": true})"},
                   {"special_tokens_map.json", R"({"bos_token": "</s>"})"}});
  const auto tokenizer = load_tokenizer_from_directory(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->special().bos, 4);
  EXPECT_EQ(tokenizer->warnings().size(), 3u);  // bos twice, pad is no token, BOS is not added
  EXPECT_EQ(tokenizer->encode("ab")->ids, std::vector<TokenId>{2});
}

TEST(TokenizerDirectory, NothingThereIsAnError) {
  const auto tokenizer = load_tokenizer_from_directory(folder_with("nothing", {{"config.json", "{}"}}));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.error().message().find("tokenizer.json"), std::string::npos);
}

TEST(TokenizerDirectory, SentencePieceModelWithConfig) {
  TARE_NEEDS_FIXTURE(path, "tokenizers/llama2");
  const std::string model = tare::testing::read_fixture(path + "/tokenizer.model");
  const std::string added =
      R"({"add_bos_token": false, "added_tokens_decoder": {"32000": {"content": "<|x|>", "special": true}}})";
  const auto tokenizer =
      load_tokenizer_from_directory(folder_with("spm", {{"tokenizer.model", model}, {"tokenizer_config.json", added}}));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("Hello, world!<|x|>")->ids, (std::vector<TokenId>{15043, 29892, 3186, 29991, 32000}));
  EXPECT_EQ(tokenizer->vocab_size(), 32001u);
}

}  // namespace
}  // namespace tare::text
