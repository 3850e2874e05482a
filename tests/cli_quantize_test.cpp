// The quantize command on a tiny model, end to end: document, files, exit codes.
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/sha256.h"
#include "checkpoints/checkpoint.h"
#include "tare_binary.h"
#include "testing/fixtures.h"

namespace tare {
namespace {

namespace fs = std::filesystem;
using testing::tare_json;
using testing::tare_run;

TEST(CliQuantize, WritesAModelWithManifest) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  const std::string out = testing::scratch_directory("quantize_out") + "/q";
  const json::object document = tare_json({"quantize", model, "--out", out, "--scheme", "W4A8", "--gate", "off"});
  for (const char* key : {"out", "format", "bpw", "bytes", "seconds", "peak_rss_bytes", "layers", "substitutions"}) {
    EXPECT_TRUE(document.contains(key)) << key;
  }
  const json::object& layer = document.at("layers").as_array().at(0).as_object();
  for (const char* key : {"name", "scheme", "bpw", "error", "error_rtn", "tokens", "status"}) {
    EXPECT_TRUE(layer.contains(key)) << key;
  }
  EXPECT_TRUE(checkpoints::load_checkpoint(out).ok());
  EXPECT_TRUE(fs::exists(out + "/tokenizer.json"));
  const json::value manifest = *json::parse_file(out + "/tare_manifest.json");
  for (const json::value& file : manifest.at("files").as_array()) {
    const std::string content = *read_text_file(out + "/" + std::string(file.at("name").as_string()));
    EXPECT_EQ(std::string(file.at("sha256").as_string()), sha256_hex(std::as_bytes(std::span(content))));
  }
  // The name is taken now.
  EXPECT_EQ(tare_run({"quantize", model, "--out", out, "--gate", "off"}).exit_code, 2);
  EXPECT_EQ(tare_run({"quantize", model, "--out", out, "--overwrite", "--gate", "off"}).exit_code, 0);
  // Only what tare wrote is replaced, and never the model that is read.
  const std::string other = testing::scratch_directory("quantize-over");
  std::ofstream(other + "/letter.txt") << "keep me";
  EXPECT_EQ(tare_run({"quantize", model, "--out", other, "--overwrite", "--gate", "off"}).exit_code, 2);
  EXPECT_TRUE(fs::exists(other + "/letter.txt"));
  const testing::Finished itself =
      tare_run({"quantize", out, "--out", out, "--overwrite", "--dequantize-first", "--gate", "off"});
  EXPECT_EQ(itself.exit_code, 2) << itself.err;
  EXPECT_TRUE(checkpoints::load_checkpoint(out).ok());
  // What was written is quantized; doing it again has to be asked for.
  EXPECT_EQ(tare_run({"quantize", out, "--out", out + "2", "--gate", "off"}).exit_code, 2);
  EXPECT_EQ(tare_run({"quantize", out, "--out", out + "2", "--dequantize-first", "--gate", "off"}).exit_code, 0);
}

TEST(CliConvert, DenseAndBack) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  const std::string out = testing::scratch_directory("convert");
  const std::string model = root + "/gptq-4bit-g128-sym";
  const json::object dense = tare_json({"convert", model, "--to", "safetensors", "--out", out + "/dense"});
  EXPECT_TRUE(dense.at("losses").as_array().empty());
  const json::object packed = tare_json({"convert", model, "--to", "compressed-tensors", "--out", out + "/ct"});
  EXPECT_EQ(packed.at("format"), "compressed-tensors");
  const auto a = checkpoints::load_checkpoint(model);
  for (const char* folder : {"/dense", "/ct"}) {
    const auto b = checkpoints::load_checkpoint(out + folder);
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_EQ(a->names(), b->names());
    for (const std::string& name : a->names()) {
      EXPECT_EQ(*tensor::to_f32(*a->load(name)), *tensor::to_f32(*b->load(name))) << folder << " " << name;
    }
  }
  const json::object rounded =
      tare_json({"convert", model, "--to", "safetensors", "--dtype", "bfloat16", "--out", out + "/bf16"});
  EXPECT_FALSE(rounded.at("losses").as_array().empty());
  EXPECT_EQ(tare_run({"convert", root + "/gguf-q4_k_m/model.gguf", "--to", "compressed-tensors", "--out", out + "/no"})
                .exit_code,
            2);
  EXPECT_FALSE(fs::exists(out + "/no"));
}

TEST(CliQuantize, RefusesBeforeItWrites) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  const std::string folder = testing::scratch_directory("quantize_refused");
  const std::string out = folder + "/q";
  const std::vector<std::vector<std::string>> wrong = {{"--scheme", "W4"},
                                                       {"--method", "magic"},
                                                       {"--format", "gguf9"},
                                                       {"--set", "x"},
                                                       {"--ignore", "no_such_module"},
                                                       {"--head", "gold"},
                                                       {"--format", "compressed-tensors", "--bits", "4"},
                                                       {"--symmetric", "--asymmetric"}};
  for (std::vector<std::string> flags : wrong) {
    std::vector<std::string> args = {"quantize", model, "--out", out, "--gate", "off"};
    args.insert(args.end(), flags.begin(), flags.end());
    const testing::Finished done = tare_run(args);
    EXPECT_EQ(done.exit_code, 2) << flags[1] << done.err;
    EXPECT_EQ(done.err.substr(0, 7), "error: ") << done.err;
  }
  EXPECT_EQ(tare_run({"quantize", model, "--out", out, "--gate", "off", "--memory", "1MiB"}).exit_code, 3);
  EXPECT_TRUE(fs::is_empty(folder)) << "something was left behind";
}

}  // namespace
}  // namespace tare
