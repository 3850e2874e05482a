#include "runtime/token_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoints/text_assets.h"
#include "runtime/end_ids.h"
#include "testing/fixtures.h"

namespace tare::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A tokenizer of the four tokens a, b, <s>, </s> and what a test writes beside it.
struct Folder {
  std::string path;
  std::optional<text::Tokenizer> tokenizer;

  explicit Folder(const std::string& name) : path(testing::scratch_directory("token-roles-" + name)) {
    write("tokenizer.json", R"({"version": "1.0", "added_tokens": [
        {"id": 2, "content": "<s>", "special": true}, {"id": 3, "content": "</s>", "special": true}],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
    write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    auto loaded = checkpoints::load_tokenizer(path);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message();
    tokenizer = std::move(*loaded);
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path + "/" + file, std::ios::binary) << text;
  }
  std::vector<std::string> compare(const char* config, int64_t vocab_size = 4) const {
    const auto found = token_contradictions(path, json::parse(config, "test")->get_object(), &*tokenizer, vocab_size);
    EXPECT_TRUE(found.ok()) << found.error().message();
    return found.ok() ? *found : std::vector<std::string>{"error"};
  }
};

TEST(TokenRoles, AgreeingAndAbsentOnesAreSilent) {
  const Folder folder("agree");
  EXPECT_THAT(folder.compare(R"({"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": -1})"), IsEmpty());
  EXPECT_THAT(folder.compare("{}", 1031), IsEmpty());
  folder.write("generation_config.json", R"({"bos_token_id": 2, "eos_token_id": [3, 0]})");
  EXPECT_THAT(folder.compare(R"({"bos_token_id": 2})"), IsEmpty());
}

TEST(TokenRoles, EachContradictionIsSaid) {
  const Folder folder("contradict");
  folder.write("generation_config.json", R"({"bos_token_id": 0, "eos_token_id": [3, 96]})");
  EXPECT_THAT(folder.compare(R"({"text_config": {"bos_token_id": 1}})", 3),
              ElementsAre("bos_token_id is 1 in config.json, 0 in generation_config.json, 2 in the tokenizer (the "
                          "tokenizer's is used)",
                          HasSubstr("has ids up to 3, the model embeds 3"),
                          HasSubstr("generation_config.json ends sequences at 96")));
  EXPECT_FALSE(token_contradictions(folder.path, json::object{{"bos_token_id", "<s>"}}, nullptr, 4).ok());
  folder.write("generation_config.json", "[]");
  EXPECT_FALSE(token_contradictions(folder.path, {}, nullptr, 4).ok());
}

TEST(EndIds, AllSourcesAreUnitedAndDifferencesSaid) {
  const Folder folder("ends");
  const auto of = [&](const std::string& path, const char* config) {
    return end_ids(path, json::parse(config, "test")->get_object(), &*folder.tokenizer, 96);
  };
  const auto alone = of(folder.path, "{}");
  EXPECT_THAT(alone->ids, ElementsAre(3));
  EXPECT_THAT(alone->notes, IsEmpty());
  folder.write("generation_config.json", R"({"eos_token_id": [3, 11]})");
  // A weights file has its folder's generation_config.json beside it.
  folder.write("model.safetensors", "");
  for (const std::string& path : {folder.path, folder.path + "/model.safetensors"}) {
    const auto united = of(path, R"({"eos_token_id": 3, "text_config": {"eos_token_id": 7}})");
    EXPECT_THAT(united->ids, ElementsAre(3, 7, 11));
    EXPECT_THAT(united->notes, ElementsAre("config.json ends sequences at 3, taken together 3,7,11",
                                           "text_config of config.json ends sequences at 7, taken together 3,7,11",
                                           "generation_config.json ends sequences at 3,11, taken together 3,7,11",
                                           "tokenizer ends sequences at 3, taken together 3,7,11"));
  }
  EXPECT_FALSE(of(folder.path, R"({"eos_token_id": 96})").ok());
  EXPECT_FALSE(of(folder.path, R"({"eos_token_id": [3, "x"]})").ok());
}

}  // namespace
}  // namespace tare::runtime
