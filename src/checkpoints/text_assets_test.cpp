#include "checkpoints/text_assets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "testing/fixtures.h"

namespace tare::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

TEST(LoadChatTemplate, ReadsSpecialTokensInBothForms) {
  const std::string folder = testing::scratch_directory("templates-config");
  write(folder + "/tokenizer_config.json",
        R"({"chat_template": "T", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
            "pad_token": null, "add_bos_token": true})");
  const auto found = load_chat_template(folder);
  ASSERT_TRUE(found.ok()) << found.error().message();
  ASSERT_TRUE(found->has_value());
  EXPECT_THAT((*found)->special_tokens, ElementsAre(Pair("bos_token", "<s>"), Pair("eos_token", "</s>")));
}

TEST(LoadChatTemplate, ListsAreNamedAndBadFormsRefused) {
  const std::string folder = testing::scratch_directory("templates-list");
  const std::string path = folder + "/tokenizer_config.json";
  write(path, R"({"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]})");
  const auto tools = load_chat_template(folder, "tool_use");
  ASSERT_TRUE(tools.ok());
  EXPECT_EQ(*(*tools)->chat_template.render({}), "B");
  EXPECT_EQ(*(*load_chat_template(folder))->chat_template.render({}), "A");
  EXPECT_FALSE(load_chat_template(folder, "rag").ok());
  for (const char* bad : {R"({"chat_template": 1})", R"({"chat_template": [1]})",
                          R"({"chat_template": [{"name": "x"}]})", R"({"chat_template": "{% if %}"})", "[]"}) {
    write(path, bad);
    EXPECT_FALSE(load_chat_template(folder).ok()) << bad;
  }
  write(path, R"({"chat_template": "A"})");
  write(folder + "/chat_template.jinja", "another");
  EXPECT_THAT(load_chat_template(folder).error().message(), HasSubstr("two different chat templates"));
}

TEST(LoadTokenizer, SaysWhatIsMissing) {
  const std::string folder = testing::scratch_directory("tokenizer-none");
  EXPECT_THAT(load_tokenizer(folder + "/no").error().message(), HasSubstr("no such model"));
  EXPECT_THAT(load_tokenizer(folder).error().message(), HasSubstr("expected tokenizer.json"));
  write(folder + "/a.tiktoken", "x");
  write(folder + "/b.tiktoken", "x");
  EXPECT_THAT(load_tokenizer(folder).error().message(), HasSubstr("2 .tiktoken files"));
  write(folder + "/tokenizer.model", "garbage");
  EXPECT_FALSE(load_tokenizer(folder).ok());
}

// Each container that a tokenizer comes in gives the same ids, told by the file alone.
TEST(LoadTokenizer, EveryContainerOfTheReferenceData) {
  TARE_NEEDS_FIXTURE(root, "tokenizers");
  for (const std::string name : {"smollm2", "llama2", "t5-small", "mistral-v3"}) {
    std::istringstream rows(testing::read_fixture(root + "/" + name + "/goldens.jsonl"));
    std::string line;
    std::getline(rows, line);
    const auto golden = json::parse(line, name);
    ASSERT_TRUE(golden.ok());
    for (const std::string file : {"tokenizer.json", "tokenizer.model", "vocab.gguf"}) {
      if (!std::filesystem::exists(root + "/" + name + "/" + file + ".xz")) continue;
      const std::string folder = testing::scratch_directory("tokenizer-" + name + file);
      write(folder + "/" + file, testing::read_fixture(root + "/" + name + "/" + file));
      for (const std::string& path : {folder, folder + "/" + file}) {
        const auto tokenizer = load_tokenizer(path);
        ASSERT_TRUE(tokenizer.ok()) << path << ": " << tokenizer.error().message();
        const auto encoding =
            tokenizer->encode(std::string_view(golden->at("text").as_string()), {.add_special = false});
        ASSERT_TRUE(encoding.ok());
        EXPECT_EQ(json::value(json::array(encoding->ids.begin(), encoding->ids.end())), golden->at("ids")) << path;
      }
    }
  }
}

}  // namespace
}  // namespace tare::checkpoints
