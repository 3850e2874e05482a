// Plugins and known answers through the binary.
#include <filesystem>

#include "base/file.h"
#include "checkpoints/manifest.h"
#include "tare_binary.h"
#include "testing/fixtures.h"

namespace tare {
namespace {

namespace fs = std::filesystem;
using testing::tare_json;
using testing::tare_run;

std::string library(const std::string& name) {
  return fs::path(TARE_BINARY).parent_path().string() + "/plugins/" + name + ".so";
}

bool contains(const json::value& list, std::string_view name) {
  for (const json::value& entry : list.as_array()) {
    if (entry.is_string() ? entry.as_string() == name : entry.at("name").as_string() == name) return true;
  }
  return false;
}

TEST(CliPlugin, ItsPartsAreInTheTablesAndInTheRunRecord) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string plugin = library("tare_example_plugin");
  const json::object methods = tare_json({"methods", "--plugin", plugin});
  EXPECT_TRUE(contains(methods.at("plugins"), "example"));
  EXPECT_TRUE(contains(methods.at("formats"), "toy4"));
  EXPECT_TRUE(contains(methods.at("algorithms"), "toy-rtn"));
  EXPECT_TRUE(contains(methods.at("kernels"), "gemm_toy4"));

  const std::string folder = testing::scratch_directory("plugin_cli");
  const json::object quantized =
      tare_json({"quantize", model, "--method", "toy-rtn", "--plugin", plugin, "--out", folder + "/q"});
  for (const json::value& layer : quantized.at("layers").as_array()) {
    const std::string name(layer.at("name").as_string());
    const bool kept = name.find("o_proj") != name.npos || name.find("_proj") == name.npos;
    EXPECT_EQ(layer.at("status").as_string(), kept ? "kept" : "toy-rtn") << name;
  }
  const json::object run = tare_json(
      {"eval", "logits", folder + "/q", "--plugin", plugin, "--token-ids", "1,5,9", "--out", folder + "/logits.npy"});
  EXPECT_TRUE(contains(run.at("kernels"), "gemm_toy4"));
  const json::object explained = tare_json({"explain", folder + "/q", "--plugin", plugin, "--m", "1", "--no-measure"});
  bool named = false;
  for (const json::value& layer : explained.at("layers").as_array()) {
    named = named || layer.at("kernel").as_string() == "gemm_toy4";
  }
  EXPECT_TRUE(named);
  const testing::Finished wrong = tare_run({"methods", "--plugin", library("bad_abi")});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("expected ABI 1, found ABI 99"), std::string::npos) << wrong.err;
}

TEST(CliVerify, RunsTheKnownAnswer) {
  TARE_NEEDS_FIXTURE(model, "checkpoints/gptq-4bit-g128-sym");
  const std::string folder = testing::scratch_directory("known_answer") + "/c";
  tare_json({"convert", model, "--to", "awq", "--out", folder});
  EXPECT_EQ(tare_json({"verify", folder}).at("ok"), json::value(true));
  json::object record = json::parse_file(folder + "/tare_manifest.json")->as_object();
  json::object& answer = record["known_answer"].as_object();
  ASSERT_TRUE(answer.contains("nll_mean"));
  answer["nll_mean"] = answer["nll_mean"].as_double() + 0.1;
  for (const char* key : {"files", "tool", "tool_version", "manifest_sha256"}) record.erase(key);
  fs::remove(folder + "/tare_manifest.json");
  ASSERT_TRUE(checkpoints::write_manifest(folder, record, {}).ok());  // all hashes hold, only the answer does not
  const json::object document = tare_json({"verify", folder}, 1);
  ASSERT_EQ(document.at("problems").as_array().size(), 1u);
  EXPECT_NE(std::string(document.at("problems").as_array()[0].at("what").as_string()).find("known answer"),
            std::string::npos);
}

TEST(CliInspect, DrawsAHistogram) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string picture = testing::scratch_directory("histogram") + "/h.svg";
  const json::object document =
      tare_json({"inspect", model, "--histogram", "model.layers.0.mlp.down_proj", "--plot", picture});
  ASSERT_EQ(document.at("histograms").as_array().size(), 1u);
  EXPECT_FALSE(document.at("histograms").as_array()[0].at("suggestion").as_string().empty());
  EXPECT_EQ(read_text_file(picture)->substr(0, 4), "<svg");
  EXPECT_EQ(tare_run({"inspect", model, "--histogram", "no_such"}).exit_code, 2);
}

}  // namespace
}  // namespace tare
