// The commands that judge a result: the gate of quantize, its report, blame.
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "tare_binary.h"
#include "testing/fixtures.h"
#include "tiny_model.h"

namespace tare {
namespace {

namespace fs = std::filesystem;
using testing::tare_json;
using testing::tare_run;

double number(const json::value& v) {
  return *json::as_number(v);
}

TEST(CliGate, PassesAndFailsTheSameModel) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  const std::string folder = testing::scratch_directory("gate");
  const json::object good =
      tare_json({"quantize", model, "--out", folder + "/good", "--scheme", "W8A16", "--report", folder + "/good.html"});
  const json::object& passed = good.at("gate").as_object();
  EXPECT_TRUE(passed.at("passed").as_bool());
  for (const char* key : {"kl_mean", "top1_agreement", "perplexity", "reference_perplexity"}) {
    EXPECT_TRUE(passed.contains(key)) << key;
  }
  EXPECT_TRUE(passed.at("reasons").as_array().empty());
  const json::value manifest = *json::parse_file(folder + "/good/tare_manifest.json");
  EXPECT_EQ(number(manifest.at("gate").at("kl_mean")), number(passed.at("kl_mean")));
  const std::string page = *read_text_file(folder + "/good.html");
  EXPECT_NE(page.find("passed"), std::string::npos);
  EXPECT_NE(page.find("model.layers.0.self_attn.q_proj"), std::string::npos);
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);  // nothing is loaded from elsewhere

  // Two bits of the same model, measured against what eight bits cost.
  const std::string limit = "kl=" + std::to_string(4 * number(passed.at("kl_mean")) + 1e-9);
  const testing::Finished failed = tare_run(
      {"quantize", model, "--out", folder + "/bad", "--bits", "2", "--group-size", "32", "--gate", limit, "--json"});
  EXPECT_EQ(failed.exit_code, 1) << failed.err;
  EXPECT_FALSE(fs::exists(folder + "/bad"));
  EXPECT_TRUE(fs::exists(folder + "/bad.rejected/tare_manifest.json"));
  const json::value document = *json::parse(failed.out, "output");
  EXPECT_FALSE(document.at("gate").at("passed").as_bool());
  EXPECT_GT(number(document.at("gate").at("kl_mean")), 4 * number(passed.at("kl_mean")));
  EXPECT_EQ(document.at("out").as_string(), folder + "/bad.rejected");
  EXPECT_NE(failed.err.find("mean KL"), std::string::npos) << failed.err;
  // A second run would find its place taken at the end: it is told at the start.
  EXPECT_EQ(tare_run({"quantize", model, "--out", folder + "/bad", "--bits", "2", "--gate", limit}).exit_code, 2);
}

TEST(CliGate, RefusesWhatItCannotRead) {
  const std::string model = testing::write_tiny_model("gate-words");
  const std::string out = model + "/out";
  for (const char* wrong : {"kl", "kl=", "kl=x", "kl=-1", "top1=2", "ppl=2", "kl=1,", "on"}) {
    const testing::Finished run = tare_run({"quantize", model, "--out", out, "--gate", wrong});
    EXPECT_EQ(run.exit_code, 2) << wrong;
    EXPECT_NE(run.err.find("--gate"), std::string::npos) << run.err;
  }
  // Without a tokenizer nothing can be judged; that is said, not skipped.
  const testing::Finished blind = tare_run({"quantize", model, "--out", out});
  EXPECT_EQ(blind.exit_code, 2);
  EXPECT_NE(blind.err.find("--gate off"), std::string::npos) << blind.err;
  EXPECT_FALSE(fs::exists(out));
}

TEST(CliBlame, NamesTheDamagedLayer) {
  constexpr int kLayers = 24;
  const auto config = testing::tiny_config(kLayers);
  const auto tensors = testing::tiny_tensors(kLayers);
  const std::string reference = testing::write_tiny_model("blame-reference", config, tensors);
  std::string ids;
  for (int i = 0; i < 128; ++i) ids += std::to_string((i * 37 + i / 7) % 67) + " ";
  std::ofstream(reference + "/ids.txt") << ids;
  const std::vector<std::string> where = {"--reference", reference, "--token-file", reference + "/ids.txt",
                                          "--context",   "32",      "--windows",    "4"};
  for (const int layer : {0, 17, 23}) {
    const std::string damaged = testing::write_tiny_model(
        "blame-damaged", config, tensors, "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight");
    std::vector<std::string> arguments = {"blame", damaged};
    arguments.insert(arguments.end(), where.begin(), where.end());
    const json::object found = tare_json(arguments);
    EXPECT_LE(found.at("evaluations").as_int64(), 6);
    const json::value& worst = found.at("layers").as_array().at(0);
    EXPECT_EQ(worst.at("name").as_string(), "model.layers." + std::to_string(layer));
    // All of the divergence goes away with that layer, and no other part has any.
    EXPECT_NEAR(number(worst.at("kl_share")), 1, 1e-6);
  }
  std::vector<std::string> same = {"blame", reference};
  same.insert(same.end(), where.begin(), where.end());
  const json::object nothing = tare_json(same);
  EXPECT_EQ(number(nothing.at("kl_mean")), 0);
  EXPECT_EQ(nothing.at("evaluations").as_int64(), 1);
  for (const json::value& group : nothing.at("layers").as_array()) EXPECT_EQ(number(group.at("kl_share")), 0);
}

}  // namespace
}  // namespace tare
