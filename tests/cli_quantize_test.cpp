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

// Every form goes into the format of the tool that invented it, is judged, named in the manifest, and runs.
TEST(CliQuantize, FormsHaveFormatsOfTheirOwn) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string folder = testing::scratch_directory("quantize_forms");
  const struct {
    const char* method;
    const char* format;
    const char* quant_method;
    const char* scheme;
  } rows[] = {
      {"nf4", "bitsandbytes", "bitsandbytes", "nf4 g64"},
      {"nf4-dq", "bitsandbytes", "bitsandbytes", "nf4 g64 scales in 8 bits"},
      {"fp4", "bitsandbytes", "bitsandbytes", "fp4 g64"},
      {"llm-int8", "bitsandbytes", "bitsandbytes", "s8 per channel, s8 dynamic per token, outliers from 6 on apart"},
      {"fp8", "compressed-tensors", "compressed-tensors", "e4m3 per channel, e4m3 dynamic per token"},
      {"fp8-tensor", "fp8", "fp8", "e4m3 per tensor, e4m3 dynamic per token"},
      {"fp8-static", "fp8", "fp8", "e4m3 per tensor, e4m3 static per tensor"},
      {"fp8-block", "fp8", "fp8", "e4m3 block 128x128, e4m3 dynamic per token and 128 channels"},
      {"hqq", "hqq", "hqq", "u4 g64 with float zero"},
      {"mxfp4", "compressed-tensors", "compressed-tensors", "e2m1 g32 scales 2^e"},
      {"nvfp4", "compressed-tensors", "compressed-tensors", "e2m1 g16 scales e4m3"},
  };
  for (const auto& row : rows) {
    const std::string out = folder + "/" + row.method;
    const json::object document = tare_json({"quantize", model, "--method", row.method, "--out", out, "--samples", "2",
                                             "--sequence-length", "64", "--report", out + ".html", "--gate",
                                             std::string(row.method) == "nf4" ? "kl=10,top1=0,ppl_ratio=100" : "off"});
    EXPECT_EQ(document.at("format"), row.format) << row.method;
    const json::object& layer = document.at("layers").as_array().at(0).as_object();
    EXPECT_EQ(layer.at("scheme"), row.scheme) << row.method;
    EXPECT_EQ(layer.at("status"), std::string(row.method) == "hqq" ? "hqq" : "rtn") << row.method;
    EXPECT_EQ(document.at("gate").is_null(), std::string(row.method) != "nf4");
    const json::value config = *json::parse_file(out + "/config.json");
    EXPECT_EQ(config.at("quantization_config").at("quant_method"), row.quant_method);
    EXPECT_EQ(json::parse_file(out + "/tare_manifest.json")->at("method"), row.method);
    EXPECT_EQ(tare_run({"verify", out}).exit_code, 0) << row.method;
    EXPECT_EQ(document.at("method"), row.method);
    EXPECT_NE(read_text_file(out + ".html")->find(std::string(" ") + row.method), std::string::npos) << row.method;
    const bool told =
        boost::json::serialize(document.at("substitutions")).find("built-in English text") != std::string::npos;
    EXPECT_EQ(told, std::string(row.method) == "fp8-static");
  }
  const std::string help = tare_run({"quantize", "--help"}).out;
  for (const auto& row : rows) EXPECT_NE(help.find(row.method), std::string::npos) << row.method;
}

TEST(CliQuantize, FormsRefuseFormatsThatCannotHoldThem) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string folder = testing::scratch_directory("quantize_forms_refused");
  const auto run = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"quantize", model, "--out", folder + "/q", "--gate", "off", "--method"};
    args.insert(args.end(), flags.begin(), flags.end());
    return tare_run(args);
  };
  for (const auto& [method, format] : {std::pair{"nf4", "gptq"}, {"hqq", "gguf"}, {"nvfp4", "fp8"}, {"fp8", "awq"}}) {
    const testing::Finished done = run({method, "--format", format});
    EXPECT_EQ(done.exit_code, 2);
    EXPECT_NE(done.err.find(std::string(format) + " does not hold what " + method + " makes"), std::string::npos)
        << done.err;
  }
  EXPECT_EQ(run({"nf4", "--bits", "8"}).exit_code, 2);
  EXPECT_EQ(run({"mxfp4", "--group-size", "64"}).exit_code, 2);
  // What a format cannot hold of these very shapes is said before any work.
  TARE_NEEDS_FIXTURE(odd, "models/T2");
  for (const auto& [method, words] :
       {std::pair{"nf4", "lut4 g64 over 352 columns"}, {"nf4-dq", "runs of 255 blocks"}}) {
    const testing::Finished done =
        tare_run({"quantize", odd, "--out", folder + "/q", "--gate", "off", "--method", method});
    EXPECT_EQ(done.exit_code, 2);
    EXPECT_NE(done.err.find(words), std::string::npos) << done.err;
  }
  EXPECT_TRUE(fs::is_empty(folder));
  // No data is needed, and that is said.
  const json::object document = tare_json(
      {"quantize", model, "--out", folder + "/q", "--gate", "off", "--method", "fp8", "--calibration", "nothing.txt"});
  EXPECT_NE(boost::json::serialize(document.at("substitutions")).find("fp8 sees no data, so it was not read"),
            std::string::npos);
}

}  // namespace
}  // namespace tare
