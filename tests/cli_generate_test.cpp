// generate at the edges of what it is given, through the binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tare_binary.h"
#include "testing/fixtures.h"
#include "tiny_model.h"

namespace tare::testing {
namespace {

using ::testing::HasSubstr;

// The tokenizer of this model knows 259 ids, its embedding 512 rows.
TEST(CliGenerate, IdsAboveTheTokenizersAddNoText) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const json::object out =
      tare_json({"generate", model, "--token-ids", "1,2,300", "--max-tokens", "6", "--ignore-eos"});
  EXPECT_EQ(out.at("token_ids").as_array().size(), 6u);
  const Finished said =
      tare_run({"generate", model, "--token-ids", "1,2,300", "--max-tokens", "6", "--ignore-eos", "--json"});
  EXPECT_THAT(said.err, HasSubstr("have no text"));
}

TEST(CliGenerate, LimitsOutOfRangeAreNamed) {
  const std::string model = write_tiny_model("cli-generate-limits");
  const auto refused = [&](const std::string& flag, const std::string& value, const std::string& named) {
    const Finished done = tare_run({"generate", model, "--token-ids", "1,2", flag, value});
    EXPECT_EQ(done.exit_code, 2) << flag << " " << value;
    EXPECT_THAT(done.err, HasSubstr(named)) << flag << " " << value;
  };
  refused("--max-tokens", "0", "max_tokens");
  refused("--max-tokens", "-1", "max_tokens");
  refused("--max-model-len", "-1", "--max-model-len");
  refused("--max-model-len", "9223372036854775807", "--max-model-len");
  // As many as fit: the context of the model ends the answer.
  const json::object out =
      tare_json({"generate", model, "--token-ids", "1,2", "--max-tokens", "9223372036854775807", "--ignore-eos"});
  EXPECT_EQ(out.at("token_ids").as_array().size(), 126u);
  EXPECT_EQ(out.at("finish_reason").as_string(), "length");
}

TEST(CliGenerate, CtrlCSaysWhatThereIsAndExits4) {
  json::object config = tiny_config();
  config["max_position_embeddings"] = 200000;
  const std::string model = write_tiny_model("cli-generate-interrupt", config);
  const Finished done =
      tare_run({"generate", model, "--token-ids", "1,2", "--max-tokens", "200000", "--ignore-eos", "--json"},
               {.interrupt_after_ms = 1500, .timeout_ms = 60000});
  EXPECT_EQ(done.exit_code, 4) << done.err;
  EXPECT_EQ(json::parse(done.out, "")->at("finish_reason").as_string(), "abort");
}

TEST(CliGenerate, AStopStringNeedsATokenizer) {
  const std::string model = write_tiny_model("cli-generate-stop");
  const Finished done = tare_run({"generate", model, "--token-ids", "1,2", "--stop", "x"});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.err, HasSubstr("a stop string needs a tokenizer"));
}

TEST(CliGenerate, MemoryDecidesTheLongestSequence) {
  json::object config = tiny_config();
  config["max_position_embeddings"] = 1 << 20;
  const std::string model = write_tiny_model("cli-generate-memory", config);
  // 2 layers x 1 kv head x (16 + 4) bytes x K and V = 80 bytes a token.
  const std::vector<std::string> run = {
      "generate", model,          "--token-ids",      "1,2",  "--max-tokens",
      "4",        "--ignore-eos", "--kv-cache-dtype", "int8", "--kv-cache-memory-bytes",
      "128000"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> args = run;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const json::object engine = tare_json(with({"--max-model-len", "auto"})).at("engine").as_object();
  EXPECT_EQ(engine.at("kv_bytes_per_token").as_int64(), 80);
  EXPECT_EQ(engine.at("capacity_tokens").as_int64(), 1600);
  EXPECT_EQ(engine.at("max_model_len").as_int64(), 1600);
  EXPECT_EQ(engine.at("kv_bytes").as_int64(), 128000);
  const Finished said = tare_run(with({"--max-model-len", "auto"}));
  EXPECT_THAT(said.err, HasSubstr("KV cache int8: 1600 tokens (100 blocks of 16)"));
  const Finished wide = tare_run(with({"--max-model-len", "2k"}));
  EXPECT_EQ(wide.exit_code, 3);
  EXPECT_THAT(wide.err, HasSubstr("at most 1600 tokens in 128000 bytes, found 2000 tokens"));
}

// The model with scale tensors of 1.0 under given names.
std::string model_with_scales(const std::string& name, const std::vector<std::string>& scales, int layers = 2) {
  std::vector<io::TensorDeclaration> tensors = tiny_tensors();
  for (int layer = 0; layer < layers; ++layer) {
    for (const std::string& scale : scales) {
      tensors.push_back({"model.layers." + std::to_string(layer) + ".self_attn" + scale, tensor::DType::kF32, {1}});
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return write_tiny_model(name, tiny_config(), tensors);
}

TEST(CliGenerate, Fp8ScalesAreFoundUnderEverySpellingOrRefused) {
  const auto run = [](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> args = {"generate", model,          "--token-ids", "5,9,44,3", "--max-tokens",
                                     "8",        "--ignore-eos", "--logprobs",  "2"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  // write_tiny_model draws by order of the tensors: the plain model has the scales' places too.
  const std::vector<std::vector<std::string>> spellings = {{".k_scale", ".v_scale"},
                                                           {".k_proj.k_scale", ".v_proj.v_scale"},
                                                           {".k_proj.output_scale", ".v_proj.output_scale"},
                                                           {".kv_scale"}};
  int number = 0;
  for (const std::vector<std::string>& spelling : spellings) {
    const std::string model = model_with_scales("kv-scales-" + std::to_string(number++), spelling);
    const json::object scaled = tare_json(run(model, {"--kv-cache-dtype", "fp8"}));
    EXPECT_EQ(scaled.at("kv_cache_dtype").as_string(), "fp8_e4m3");
    EXPECT_EQ(scaled.at("logprobs"),
              tare_json(run(model, {"--kv-cache-dtype", "fp8", "--kv-scale", "one"})).at("logprobs"));
    // A cache that is not fp8 does not see them.
    EXPECT_NE(scaled.at("logprobs"), tare_json(run(model, {"--kv-cache-dtype", "f16"})).at("logprobs"));
    EXPECT_NE(scaled.at("logprobs"),
              tare_json(run(model, {"--kv-cache-dtype", "fp8", "--calculate-kv-scales"})).at("logprobs"));
  }
  const std::string none = write_tiny_model("kv-scales-none");
  const Finished refused = tare_run(run(none, {"--kv-cache-dtype", "fp8"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("layer 0, K scale"));
  EXPECT_THAT(refused.err, HasSubstr("--kv-scale=one"));
  EXPECT_EQ(tare_run(run(none, {"--kv-cache-dtype", "fp8", "--kv-scale", "one"})).exit_code, 0);
  EXPECT_EQ(tare_run(run(none, {"--kv-cache-dtype", "fp8", "--calculate-kv-scales"})).exit_code, 0);
  const std::string partial = model_with_scales("kv-scales-partial", {".k_scale", ".v_scale"}, 1);
  const Finished half = tare_run(run(partial, {"--kv-cache-dtype", "fp8"}));
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, HasSubstr("layer 1, K scale"));
  // The layer that lacks them may stay unquantized.
  EXPECT_EQ(tare_run(run(partial, {"--kv-cache-dtype", "fp8", "--kv-cache-dtype-skip-layers", "1"})).exit_code, 0);
  EXPECT_THAT(tare_run(run(partial, {"--kv-cache-dtype-skip-layers", "2"})).err, HasSubstr("expected 0 to 1, found 2"));
  const std::string queries = model_with_scales("kv-scales-q", {".k_scale", ".v_scale", ".q_scale"});
  EXPECT_THAT(tare_run(run(queries, {"--kv-cache-dtype", "fp8"})).err, HasSubstr("read and not applied"));
}

}  // namespace
}  // namespace tare::testing
