// inspect, verify and methods, through the binary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "tare_binary.h"
#include "testing/fixtures.h"
#include "tiny_model.h"

namespace tare::testing {
namespace {

using ::testing::HasSubstr;

std::string text_of(const json::value& v) {
  return boost::json::serialize(v);
}

TEST(CliInspect, TellsWhatTheFilesHold) {
  const std::string model = write_tiny_model("cli-inspect");
  const json::object out = tare_json({"inspect", model});
  EXPECT_EQ(out.at("format").as_string(), "safetensors");
  EXPECT_EQ(out.at("declared").at("hidden_size").to_number<int>(), 48);
  EXPECT_EQ(out.at("contradictions").as_array().size(), 0u);
  EXPECT_EQ(out.at("bpw").to_number<double>(), 32.0);
  // 67*48 + 48 + 2 * (2*48 + 3*48*72 + 2*16*48 + 2*48*48), by hand
  EXPECT_EQ(out.at("found").at("weights").to_number<int64_t>(), 36480);
  EXPECT_EQ(out.at("found").at("bytes").to_number<int64_t>(), 4 * 36480);
  ASSERT_EQ(out.at("tensors").as_array().size(), 20u);
  const json::object& first = out.at("tensors").at(0).as_object();
  EXPECT_EQ(text_of(first.at("name")), R"("model.embed_tokens.weight")");
  EXPECT_EQ(text_of(first.at("shape")), "[67,48]");
  EXPECT_EQ(text_of(first.at("code")), R"("f32")");
  EXPECT_EQ(text_of(first.at("bits")), "32");
  EXPECT_TRUE(first.at("group_size").is_null());
}

TEST(CliInspect, NamesContradictions) {
  // Weights that are missing or misshapen: the report, and exit code 1. What is merely unknown is told and passes.
  const auto contradictions = [](const std::string& model, int exit_code) {
    const Finished done = tare_run({"inspect", model, "--json"});
    EXPECT_EQ(done.exit_code, exit_code) << done.err;
    const auto document = json::parse(done.out, model);
    return document.ok() ? text_of(document->at("contradictions")) : done.out;
  };
  json::object config = tiny_config();
  config["num_hidden_layers"] = 3;
  EXPECT_THAT(contradictions(write_tiny_model("cli-inspect-layers", config), 1), HasSubstr("model.layers.2."));
  config = tiny_config();
  config["tie_word_embeddings"] = false;
  EXPECT_THAT(contradictions(write_tiny_model("cli-inspect-headless", config), 1), HasSubstr("lm_head.weight"));
  config = tiny_config();
  config["vocab_size"] = 68;
  EXPECT_THAT(contradictions(write_tiny_model("cli-inspect-vocab", config), 1), HasSubstr("embed_tokens"));
  config["model_type"] = "unheard_of";
  EXPECT_THAT(contradictions(write_tiny_model("cli-inspect-family", config), 0), HasSubstr("unheard_of"));
  EXPECT_EQ(tare_run({"inspect", "no/such/model"}).exit_code, 2);
  // Ends of sequence that two files name differently.
  config = tiny_config();
  config["eos_token_id"] = 1;
  const std::string ends = write_tiny_model("cli-inspect-ends", config);
  std::ofstream(ends + "/generation_config.json") << R"({"eos_token_id": [1, 2]})";
  EXPECT_THAT(contradictions(ends, 0), HasSubstr("config.json ends sequences at 1, taken together 1,2"));
}

TEST(CliVerify, PassesAWholeModelAndItsSource) {
  const std::string model = write_tiny_model("cli-verify");
  const json::object out = tare_json({"verify", model, "--source", model});
  EXPECT_TRUE(out.at("ok").as_bool());
  EXPECT_EQ(out.at("problems").as_array().size(), 0u);
}

TEST(CliVerify, FindsWhatIsWrongAndExitsWith1) {
  const std::string model = write_tiny_model("cli-verify-nan");
  const std::string path = model + "/model.safetensors";
  std::string bytes = *read_text_file(path);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - 40, &nan, 4);
  ASSERT_TRUE(write_file_atomically(path, bytes).ok());
  json::object out = tare_json({"verify", model}, 1);
  EXPECT_FALSE(out.at("ok").as_bool());
  ASSERT_EQ(out.at("problems").as_array().size(), 1u);
  EXPECT_EQ(text_of(out.at("problems").at(0).at("tensor")), R"("model.norm.weight")");

  bytes.resize(bytes.size() - 1);
  ASSERT_TRUE(write_file_atomically(path, bytes).ok());
  out = tare_json({"verify", model}, 1);
  EXPECT_FALSE(out.at("ok").as_bool());

  std::vector<io::TensorDeclaration> fewer = tiny_tensors();
  fewer.pop_back();
  const std::string incomplete = write_tiny_model("cli-verify-missing", tiny_config(), fewer);
  EXPECT_THAT(text_of(tare_json({"verify", incomplete}, 1).at("problems")), HasSubstr("model.norm.weight"));
  const std::string whole = write_tiny_model("cli-verify-whole");
  EXPECT_THAT(text_of(tare_json({"verify", whole, "--source", incomplete}, 1).at("problems")),
              HasSubstr("is here, but not in the source"));
  EXPECT_EQ(tare_run({"verify", "no/such/model"}).exit_code, 2);
}

TEST(CliMethods, ListsRegistriesWithReasons) {
  const json::object out = tare_json({"methods", "--isa", "reference"});
  EXPECT_THAT(text_of(out.at("formats")), HasSubstr(R"("name":"gguf")"));
  int available = 0;
  for (const json::value& kernel : out.at("kernels").as_array()) {
    available += kernel.at("available").as_bool();
    EXPECT_NE(kernel.at("available").as_bool(), !kernel.at("reason").as_string().empty()) << kernel.at("name");
  }
  EXPECT_GE(available, 1) << "the reference takes everything";
  EXPECT_THAT(text_of(out.at("kv")), HasSubstr("int4"));
}

TEST(CliGoldens, EveryReferenceCheckpointIsReadOrRefusedByName) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!entry.is_directory()) continue;
    std::string path = entry.path().string();
    const Finished done = tare_run({"inspect", path, "--json"});
    EXPECT_TRUE(done.exit_code == 0 || done.exit_code == 2) << path;
    const auto document = json::parse(done.out, path);
    ASSERT_TRUE(document.ok()) << path << done.out;
    if (done.exit_code == 2) {
      EXPECT_THAT(done.err, ::testing::MatchesRegex("error: [^\n]*\n")) << path;
    }
  }
}

}  // namespace
}  // namespace tare::testing
