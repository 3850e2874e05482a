#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <sstream>

#include "base/json.h"
#include "testing/fixtures.h"

namespace tare::text {
namespace {

constexpr CivilTime kFrozen{2025, 3, 14, 15, 9, 26};

struct Golden {
  std::map<std::string, std::map<std::string, std::string>> special_tokens;  // by template
  std::map<std::string, boost::json::object> conversations;
  std::vector<boost::json::object> rows;
};

Golden load_goldens(const std::string& folder) {
  Golden golden;
  const auto manifest = json::parse(testing::read_fixture(folder + "/manifest.json"), "manifest");
  EXPECT_TRUE(manifest.ok());
  for (const auto& row : manifest->as_array()) {
    auto& tokens = golden.special_tokens[std::string(row.at("name").as_string())];
    for (const auto& [key, value] : row.at("special_tokens").as_object()) tokens[key] = value.as_string().c_str();
  }
  const auto conversations = json::parse(testing::read_fixture(folder + "/conversations.json"), "conversations");
  EXPECT_TRUE(conversations.ok());
  for (const auto& row : conversations->as_array()) {
    golden.conversations[std::string(row.at("name").as_string())] = row.as_object();
  }
  std::istringstream lines(testing::read_fixture(folder + "/goldens.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto row = json::parse(line, "goldens");
    EXPECT_TRUE(row.ok());
    golden.rows.push_back(row->as_object());
  }
  return golden;
}

TEST(ChatTemplateGoldens, EveryRenderingIsExact) {
  TARE_NEEDS_FIXTURE(folder, "chat_templates");
  const Golden golden = load_goldens(folder);
  std::map<std::string, std::optional<ChatTemplate>> templates;
  std::map<std::string, std::string> parse_errors;
  for (const auto& [name, unused] : golden.special_tokens) {
    auto parsed = ChatTemplate::parse(testing::read_fixture(folder + "/templates/" + name + ".jinja"), name);
    if (parsed.ok()) {
      templates[name] = *std::move(parsed);
    } else {
      parse_errors[name] = parsed.error().message();
    }
  }
  ASSERT_GE(golden.rows.size(), 900u);
  int wrong = 0;
  for (const auto& row : golden.rows) {
    const std::string name(row.at("template").as_string()), talk(row.at("conversation").as_string());
    const boost::json::object& conversation = golden.conversations.at(talk);
    ChatTemplateInput input;
    input.messages = &conversation.at("messages").as_array();
    input.tools = &conversation.at("tools");
    input.kwargs = &conversation.at("kwargs").as_object();
    input.add_generation_prompt = conversation.at("add_generation_prompt").as_bool();
    input.special_tokens = golden.special_tokens.at(name);
    input.now = kFrozen;
    ChatTemplateFailure failure;
    const Result<std::string> text = templates[name] ? templates[name]->render(input, &failure)
                                                     : Result<std::string>(invalid_input(parse_errors[name]));
    const std::string found = text.ok() ? *text : "error: " + text.error().message();
    std::string expected = "error";
    bool right = !text.ok();
    if (row.contains("text")) {
      expected = row.at("text").as_string().c_str();
      right = text.ok() && *text == expected;
    } else if (row.at("error_kind").as_string() == "raise_exception") {
      expected = row.at("error").as_string().c_str();
      right = !text.ok() && failure.kind == ChatTemplateFailure::Kind::kRaised && failure.message == expected;
    } else {
      right = right && failure.kind != ChatTemplateFailure::Kind::kRaised;
    }
    if (!right && ++wrong <= 20) {
      ADD_FAILURE() << name << " x " << talk << "\n--- expected\n" << expected << "\n--- found\n" << found;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << golden.rows.size();
}

}  // namespace
}  // namespace tare::text
