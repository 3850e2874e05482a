#include "text/chat_template_source.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "testing/fixtures.h"

namespace tare::text {
namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ChatTemplateSource, NoneIsNoError) {
  const auto found = find_chat_template(testing::scratch_directory("template-none"));
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->has_value());
}

TEST(ChatTemplateSource, ReadsTextAndTokensOfTokenizerConfig) {
  const std::string folder = testing::scratch_directory("template-config");
  write(folder + "/tokenizer_config.json",
        R"({"chat_template": "{{ 1 }}", "bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null})");
  const auto found = find_chat_template(folder);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->text, "{{ 1 }}");
  EXPECT_EQ((*found)->file, folder + "/tokenizer_config.json");
  EXPECT_EQ((*found)->special_tokens,
            (std::map<std::string, std::string>{{"bos_token", "<s>"}, {"eos_token", "</s>"}}));
  EXPECT_TRUE((*found)->warnings.empty());
}

TEST(ChatTemplateSource, NamedTemplates) {
  const std::string folder = testing::scratch_directory("template-named");
  write(folder + "/tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  write(folder + "/additional_chat_templates/rag.jinja", "r");
  const auto found = find_chat_template(folder);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->text, "d");
  EXPECT_EQ((*found)->named, (std::map<std::string, std::string>{{"rag", "r"}, {"tool_use", "t"}}));
}

TEST(ChatTemplateSource, ContradictionIsToldAndTheFileWins) {
  const std::string folder = testing::scratch_directory("template-differs");
  write(folder + "/tokenizer_config.json", R"({"chat_template": "old"})");
  write(folder + "/chat_template.jinja", "new");
  write(folder + "/chat_template.json", R"({"chat_template": "new"})");
  const auto found = find_chat_template(folder);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->text, "new");
  EXPECT_EQ((*found)->file, folder + "/chat_template.jinja");
  ASSERT_EQ((*found)->warnings.size(), 1u);
  EXPECT_NE((*found)->warnings[0].find("tokenizer_config.json differs"), std::string::npos) << (*found)->warnings[0];
}

TEST(ChatTemplateSource, WrongShapesAreRefused) {
  const std::string folder = testing::scratch_directory("template-wrong");
  for (const char* text :
       {R"({"chat_template": 5})", R"({"chat_template": ["x"]})", R"({"chat_template": [{"name": "a"}]})",
        R"({"chat_template": [{"name": "a", "template": "1"}, {"name": "a", "template": "2"}]})",
        R"({"chat_template": [{"name": "a", "template": "1"}, {"name": "b", "template": "2"}]})", R"({"bos_token": 7})",
        R"([])", R"({"chat_template": "x)"}) {
    write(folder + "/tokenizer_config.json", text);
    EXPECT_FALSE(find_chat_template(folder).ok()) << text;
  }
}

}  // namespace
}  // namespace tare::text
