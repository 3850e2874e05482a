// tokenize, detokenize and template, through the binary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tare_binary.h"
#include "testing/fixtures.h"

namespace tare::testing {
namespace {

using ::testing::HasSubstr;

// "a", "b", " " and the merge "ab"; <s> is a control token put in front.
constexpr const char* kTinyTokenizer = R"({
  "version": "1.0",
  "added_tokens": [{"id": 4, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3}, "merges": [["a", "b"]]}
})";

std::string write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string tiny_model(const std::string& name) {
  const std::string folder = scratch_directory(name);
  write_file(folder + "/tokenizer.json", kTinyTokenizer);
  return folder;
}

std::vector<json::value> lines_of(const std::string& text) {
  std::vector<json::value> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    auto parsed = json::parse(line, "output");
    EXPECT_TRUE(parsed.ok()) << line;
    if (parsed.ok()) out.push_back(*std::move(parsed));
  }
  return out;
}

std::string text_of(const json::value& v) {
  return boost::json::serialize(v);
}

TEST(CliTemplate, NamesAModelThatIsNotThere) {
  const std::string messages = write_file(scratch_directory("cli-no-model") + "/m.json", "[]");
  const Finished done = tare_run({"template", "no/such/model", "--messages", messages});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.err, HasSubstr("no such model"));
}

TEST(CliDetokenize, RefusesListsWithHoles) {
  const std::string model = tiny_model("cli-commas");
  EXPECT_EQ(tare_json({"detokenize", model, "--token-ids", "0, 1"}).at("text").as_string(), "ab");
  EXPECT_EQ(tare_json({"detokenize", model, "--token-ids", "[0 1]"}).at("text").as_string(), "ab");
  for (const char* wrong : {"0,1,", ",0", "0,,1", ",", "0;1", "0x", "-1", "[0,]"}) {
    const Finished done = tare_run({"detokenize", model, "--token-ids", wrong});
    EXPECT_EQ(done.exit_code, 2) << wrong;
    EXPECT_THAT(done.err, HasSubstr("--token-ids")) << wrong;
  }
}

TEST(CliTokenize, GivesIdsTokensAndOffsets) {
  const std::string model = tiny_model("cli-tokenize");
  json::object out = tare_json({"tokenize", model, "--text", "ab a<s>"});
  EXPECT_EQ(text_of(out["ids"]), "[4,3,2,0,4]");
  EXPECT_EQ(text_of(out["tokens"]), R"(["<s>","ab","Ġ","a","<s>"])");
  EXPECT_EQ(text_of(out["offsets"]), "[[0,0],[0,2],[2,3],[3,4],[4,7]]");
  out = tare_json({"tokenize", model + "/tokenizer.json", "--no-special", "--text", "ab"});
  EXPECT_EQ(text_of(out["ids"]), "[3]");
  out = tare_json({"tokenize", model, "--no-special", "--text", ""});
  EXPECT_EQ(text_of(out["ids"]), "[]");
  out = tare_json({"tokenize", model, "--no-special", "--text", "-ab"});
  EXPECT_EQ(text_of(out["ids"]), "[3]") << "a value may start with a dash";
  out = tare_json({"tokenize", model, "--no-special", "--text-file", write_file(model + "/t.txt", "b\na")});
  EXPECT_EQ(text_of(out["ids"]), "[1,0]");
  EXPECT_EQ(out["dropped_bytes"].to_number<int>(), 1) << "the line break has no token";
}

TEST(CliTokenize, OneLineOutForEachLineIn) {
  const std::string model = tiny_model("cli-tokenize-lines");
  const std::string in = write_file(model + "/in.jsonl",
                                    "{\"text\":\"ab\"}\n\n{\"text\":\"<s>\",\"add_special\":false}\n"
                                    "{\"text\":\"a\",\"add_special\":false,\"specials_as_text\":true}\n");
  Finished done = tare_run({"tokenize", model, "--jsonl", in});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const auto lines = lines_of(done.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(text_of(lines[0].at("ids")), "[4,3]");
  EXPECT_EQ(text_of(lines[1].at("ids")), "[4]");
  EXPECT_EQ(text_of(lines[2].at("ids")), "[0]");

  done = tare_run({"tokenize", model, "--jsonl", "-"},
                  {.input = "{\"text\": 5}\nnonsense\n{\"txt\":\"a\"}\n{\"text\":\"a\"}"});
  EXPECT_EQ(done.exit_code, 2);
  const auto bad = lines_of(done.out);
  ASSERT_EQ(bad.size(), 4u);
  EXPECT_THAT(text_of(bad[0]), HasSubstr("'text' has the wrong type"));
  EXPECT_THAT(text_of(bad[1]), HasSubstr("malformed JSON"));
  EXPECT_THAT(text_of(bad[2]), HasSubstr("found 'txt'"));
  EXPECT_EQ(text_of(bad[3].at("ids")), "[4,0]");
}

TEST(CliTokenize, RefusesWhatIsUnclear) {
  const std::string model = tiny_model("cli-tokenize-bad");
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"tokenize", model},
                                             {"tokenize", model, "--text", "a", "--text-file", "b"},
                                             {"tokenize", "no/such/model", "--text", "a"},
                                             {"tokenize", "--text", "a"},
                                             {"tokenize", scratch_directory("cli-tokenize-empty"), "--text", "a"},
                                             {"detokenize", model},
                                             {"detokenize", model, "--token-ids", "-1"},
                                             {"detokenize", model, "--token-ids", "1x"},
                                             {"detokenize", model, "--token-ids", "99"},
                                             {"detokenize", model, "--token-ids", "4294967296"}}) {
    const Finished done = tare_run(args);
    EXPECT_EQ(done.exit_code, 2) << ::testing::PrintToString(args);
    EXPECT_THAT(done.err, ::testing::MatchesRegex("error: [^\n]*\n"));
  }
}

TEST(CliDetokenize, GivesTextAndIncrements) {
  const std::string model = tiny_model("cli-detokenize");
  json::object out = tare_json({"detokenize", model, "--token-ids", "4, 3,2,0"});
  EXPECT_EQ(text_of(out["text"]), R"("<s>ab a")");
  EXPECT_EQ(text_of(out["increments"]), R"(["<s>","ab"," ","a"])");
  out = tare_json({"detokenize", model, "--token-ids", "[4,3]", "--skip-special"});
  EXPECT_EQ(text_of(out["text"]), R"("ab")");
  out = tare_json({"detokenize", model, "--token-ids", ""});
  EXPECT_EQ(text_of(out["text"]), R"("")");

  const Finished done = tare_run({"detokenize", model, "--jsonl", "-"},
                                 {.input = "{\"ids\":[4,1],\"skip_special\":true}\n{\"ids\":[77]}\n{\"ids\":[0]}\n"});
  EXPECT_EQ(done.exit_code, 0) << "an id out of range is that line's result";
  const auto lines = lines_of(done.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(text_of(lines[0].at("text")), R"("b")");
  EXPECT_THAT(text_of(lines[1].at("error")), HasSubstr("77"));
  EXPECT_EQ(text_of(lines[2].at("text")), R"("a")");
}

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('No bad \"roles\"') }}{% endif %}"
    "{{ m.content }}{% endfor %}{% if tools %}T{{ tools | length }}{% endif %}{{ extra }}"
    "{% if add_generation_prompt %}>{% endif %}{{ strftime_now('%H:%M') if clock else '' }}";

TEST(CliTemplate, RendersFlagsFilesAndLines) {
  const std::string folder = tiny_model("cli-template");
  const std::string jinja = write_file(folder + "/t.jinja", kTemplate);
  const std::string messages = write_file(folder + "/m.json", R"([{"role":"user","content":"ab"}])");
  const std::string tools = write_file(folder + "/tools.json", R"([{"x":1},{"x":2}])");
  json::object out = tare_json({"template", "--template", jinja, "--messages", messages, "--special", "bos_token=<s>"});
  EXPECT_EQ(text_of(out["text"]), R"("<s>ab>")");
  EXPECT_FALSE(out.contains("ids"));
  out = tare_json({"template", "--template", jinja, "--messages", messages, "--tools", tools, "--kwargs",
                   R"({"extra":"E","clock":true})", "--now", "2025-03-14T15:09:26", "--no-generation-prompt"});
  EXPECT_EQ(text_of(out["text"]), R"("abT2E15:09")");

  write_file(folder + "/tokenizer_config.json",
             boost::json::serialize(json::object{{"chat_template", kTemplate}, {"bos_token", "<s>"}}));
  out = tare_json({"template", folder, "--messages", messages});
  EXPECT_EQ(text_of(out["text"]), R"("<s>ab>")");
  EXPECT_EQ(text_of(out["ids"]), "[4,3]") << "the template writes its own control tokens";

  const Finished done =
      tare_run({"template", folder, "--jsonl", "-"},
               {.input = R"({"messages":[{"role":"user","content":"b"}],"add_generation_prompt":false})"
                         "\n"
                         R"({"messages":[{"role":"bad","content":"b"}],"tools":null,"kwargs":{}})"
                         "\n"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  const auto lines = lines_of(done.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(text_of(lines[0].at("text")), R"("<s>b")");
  EXPECT_EQ(text_of(lines[1].at("error")), R"("No bad \"roles\"")") << "the template's own words";
  EXPECT_EQ(text_of(lines[1].at("error_kind")), R"("raise_exception")");
}

TEST(CliTemplate, ErrorsAreOneDocumentAndExitCode2) {
  const std::string folder = tiny_model("cli-template-bad");
  const std::string jinja = write_file(folder + "/t.jinja", kTemplate);
  const std::string messages = write_file(folder + "/m.json", R"([{"role":"bad","content":"ab"}])");
  const json::object out = tare_json({"template", "--template", jinja, "--messages", messages}, 2);
  EXPECT_EQ(text_of(out.at("error")), R"("No bad \"roles\"")");
  const std::string broken = write_file(folder + "/broken.jinja", "{% if %}");
  EXPECT_THAT(text_of(tare_json({"template", "--template", broken, "--messages", messages}, 2)), HasSubstr("error"));
  for (const char* now : {"2025-03-14", "2025-13-14T15:09:26", "2025-03-14T15:09:6x", "yesterday"}) {
    EXPECT_EQ(tare_run({"template", "--template", jinja, "--messages", messages, "--now", now}).exit_code, 2) << now;
  }
  EXPECT_EQ(tare_run({"template", folder, "--messages", messages}).exit_code, 2) << "no template in this model";
  EXPECT_EQ(tare_run({"template", "--template", jinja}).exit_code, 2);
}

TEST(CliTokenizeGoldens, RealTokenizerThroughTheBinary) {
  TARE_NEEDS_FIXTURE(path, "tokenizers/smollm2");
  const std::string folder = scratch_directory("cli-smollm2");
  write_file(folder + "/tokenizer.json", read_fixture(path + "/tokenizer.json"));
  std::vector<json::value> rows = lines_of(read_fixture(path + "/goldens.jsonl"));
  std::string in, ids_in;
  for (const json::value& row : rows) {
    in += boost::json::serialize(json::object{{"text", row.at("text")}, {"add_special", false}}) + "\n";
    ids_in += boost::json::serialize(json::object{{"ids", row.at("ids")}}) + "\n";
  }
  const auto encoded = lines_of(tare_run({"tokenize", folder, "--jsonl", "-"}, {.input = in}).out);
  const auto decoded = lines_of(tare_run({"detokenize", folder, "--jsonl", "-"}, {.input = ids_in}).out);
  ASSERT_EQ(encoded.size(), rows.size());
  ASSERT_EQ(decoded.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(encoded[i].at("ids"), rows[i].at("ids")) << rows[i].at("id");
    EXPECT_EQ(encoded[i].at("offsets"), rows[i].at("offsets")) << rows[i].at("id");
    EXPECT_EQ(decoded[i].at("text"), rows[i].at("decode")) << rows[i].at("id");
  }
}

}  // namespace
}  // namespace tare::testing
