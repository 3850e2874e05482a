// Mixed precision from the command line: budget, plan file, reproduction, resume, refusals.
#include <filesystem>
#include <fstream>
#include <map>

#include "base/file.h"
#include "checkpoints/checkpoint.h"
#include "quantize_files.h"
#include "tare_binary.h"
#include "testing/fixtures.h"

namespace tare {
namespace {

namespace fs = std::filesystem;
using testing::calibration_file;
using testing::content_of;
using testing::tare_json;
using testing::tare_run;

std::vector<std::string> with(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

class CliPrecision : public ::testing::Test {
 protected:
  void start(const std::string& model, const char* name) {
    model_ = model;
    work_ = testing::scratch_directory(name);
    data_ = {
        "--calibration", calibration_file(work_, 300), "--samples", "4", "--sequence-length", "32", "--threads", "1"};
  }
  std::vector<std::string> quantize(const std::string& out, const std::vector<std::string>& flags) const {
    return with(with({"quantize", model_, "--gate", "off", "--out", work_ + "/" + out}, data_), flags);
  }
  int64_t size(const std::string& out) const {
    return static_cast<int64_t>(fs::file_size(work_ + "/" + out + "/model.safetensors"));
  }

  std::string model_, work_;
  std::vector<std::string> data_;
};

TEST_F(CliPrecision, APlanReproducesItsRunAndMayBeEdited) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  start(model, "precision");
  const json::object uniform = tare_json(quantize("uniform", {"--method", "gptq", "--group-size", "64"}));
  const std::string target = std::to_string(uniform.at("bytes").as_int64());
  const std::string out = work_ + "/mixed";
  const json::object made = tare_json(quantize("mixed", {"--target-bytes", target}));
  EXPECT_LE(made.at("bytes").as_int64(), uniform.at("bytes").as_int64());
  EXPECT_EQ(made.at("bytes").as_int64(), size("mixed"));
  const json::object& plan = made.at("plan").as_object();
  EXPECT_EQ(plan.at("bytes"), made.at("bytes"));
  EXPECT_GT(plan.at("forms").as_object().size(), 1u);
  EXPECT_GT(plan.at("divergence").to_number<double>(), 0);
  EXPECT_EQ(tare_run({"verify", out}).exit_code, 0);

  // The same bytes from the plan alone, the plan and the manifest included.
  const json::object again = tare_json(quantize("again", {"--plan", out + "/tare_plan.json"}));
  EXPECT_EQ(content_of(work_ + "/again"), content_of(out));
  EXPECT_EQ(again.at("plan"), made.at("plan"));

  // Without quantizing.
  const json::object only = tare_json(
      with(with({"quantize", model_}, data_), {"--target-bytes", target, "--plan-only", work_ + "/only.json"}));
  EXPECT_EQ(*read_text_file(work_ + "/only.json"), *read_text_file(out + "/tare_plan.json"));
  EXPECT_EQ(only.at("bytes"), made.at("bytes"));

  // One row by hand: that matrix changes, its prediction goes, and the result says so.
  std::string text = *read_text_file(out + "/tare_plan.json");
  const std::string name = "\"model.layers.0.mlp.up_proj\"";
  const size_t at = text.find(name);
  ASSERT_NE(at, text.npos);
  const size_t end = text.find('\n', at);
  text.replace(at, end - at, name + R"(, "bits": 8, "group_size": -1, "scale_dtype": "float32", "method": "rtn"},)");
  std::ofstream(work_ + "/edited.json") << text;
  const json::object edited = tare_json(quantize("edited", {"--plan", work_ + "/edited.json"}));
  EXPECT_TRUE(edited.at("plan").at("divergence").is_null());
  EXPECT_EQ(edited.at("bytes").as_int64(), size("edited"));
  bool said = false;
  for (const json::value& note : edited.at("substitutions").as_array()) {
    said = said || note.as_string().find("edited") != boost::json::string::npos;
  }
  EXPECT_TRUE(said);
  const auto loaded = checkpoints::load_checkpoint(work_ + "/edited");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(std::get<tensor::QuantSpec>(loaded->find("model.layers.0.mlp.up_proj.weight")->form).bits, 8);
  EXPECT_EQ(tare_run({"verify", work_ + "/edited"}).exit_code, 0);

  // Plans that contradict the model.
  const auto refused = [&](const std::string& plan_text, const std::string& says) {
    std::ofstream(work_ + "/wrong.json") << plan_text;
    const testing::Finished done = tare_run(quantize("wrong", {"--plan", work_ + "/wrong.json"}));
    EXPECT_EQ(done.exit_code, 2) << done.err;
    EXPECT_NE(done.err.find(says), std::string::npos) << done.err;
    EXPECT_FALSE(fs::exists(work_ + "/wrong"));
    EXPECT_FALSE(fs::exists(work_ + "/wrong.journal"));
  };
  std::string missing = text;
  missing.erase(missing.find(name) - 13, missing.find('\n', missing.find(name)) - missing.find(name) + 14);
  refused(missing, "model.layers.0.mlp.up_proj");
  std::string unknown = text;
  unknown.replace(unknown.find(name), name.size(), "\"model.layers.9.mlp.up_proj\"");
  refused(unknown, "model.layers.0.mlp.up_proj");
  refused("{}", "tare_plan");
  refused(text.substr(0, text.size() / 2), "wrong.json");
  // What the plan says is not said a second time.
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--bits", "4"}, {"--method", "rtn"}, {"--set", ".*:bits=8"}, {"--target-bpw", "4"}, {"--head", "int8"}}) {
    const testing::Finished done = tare_run(with(quantize("wrong", {"--plan", out + "/tare_plan.json"}), more));
    EXPECT_EQ(done.exit_code, 2) << more[0] << done.err;
  }
  EXPECT_EQ(tare_run(quantize("wrong", {"--target-bytes", "1000"})).exit_code, 2);
  EXPECT_EQ(tare_run(quantize("wrong", {"--target-bytes", target, "--target-bpw", "4"})).exit_code, 2);
  EXPECT_EQ(tare_run(quantize("wrong", {"--target-bytes", target, "--format", "awq"})).exit_code, 2);
  EXPECT_EQ(tare_run(quantize("wrong", {"--target-bytes", target, "--method", "qoq"})).exit_code, 2);
  EXPECT_EQ(tare_run(quantize("wrong", {"--plan-only", work_ + "/p.json"})).exit_code, 2);
  EXPECT_EQ(tare_run({"quantize", model_}).exit_code, 2);
  EXPECT_FALSE(fs::exists(work_ + "/wrong"));
}

// The gate and the report see a mixed model like any other.
TEST_F(CliPrecision, GateReportAndNextRunTakeIt) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  start(model, "precision-gate");
  std::string text;
  for (int i = 0; i < 400; ++i) text += "one two three " + std::to_string(i) + " ";
  std::ofstream(work_ + "/judge.txt") << text;
  std::vector<std::string> args = with({"quantize", model_, "--out", work_ + "/q", "--method", "rtn", "--target-bpw",
                                        "7", "--gate-text", work_ + "/judge.txt", "--report", work_ + "/r.html"},
                                       data_);
  const testing::Finished done = tare_run(with(args, {"--json"}));
  ASSERT_TRUE(done.exit_code == 0 || done.exit_code == 1) << done.err;
  const json::value document = *json::parse(done.out, "document");
  EXPECT_TRUE(document.at("gate").is_object());
  const double bpw = document.at("bpw").to_number<double>();
  EXPECT_LE(bpw, 7);
  EXPECT_GT(bpw, 6.5);
  const std::string out(document.at("out").as_string());
  EXPECT_EQ(tare_run({"verify", out}).exit_code, 0);
  const std::string page = *read_text_file(work_ + "/r.html");
  for (const auto& [form, count] : document.at("plan").at("forms").as_object()) {
    EXPECT_NE(page.find(std::string_view(form)), std::string::npos) << std::string_view(form);
  }
  // A plan is about one result: what is made from this one does not inherit it.
  EXPECT_EQ(tare_run({"quantize", out, "--out", work_ + "/next", "--dequantize-first", "--gate", "off"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(work_ + "/next/tare_plan.json"));
}

}  // namespace
}  // namespace tare
