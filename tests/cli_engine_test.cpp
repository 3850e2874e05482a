// Commands that run the engine with many requests, and the edges of their flags, through the binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tare_binary.h"
#include "testing/fixtures.h"
#include "tiny_model.h"

namespace tare::testing {
namespace {

using ::testing::HasSubstr;

TEST(CliEngine, ThroughputFindsTheWidestBatchThatFits) {
  const std::string model = write_tiny_model("cli-throughput");
  const std::string records = scratch_directory("cli-throughput-records") + "/records.jsonl";
  // 2 layers x 1 kv head x 16 channels x 2 bytes x K and V = 128 bytes a token, 48 tokens a sequence: 5 sequences.
  const json::object out =
      tare_json({"bench", "throughput", model, "--input-len", "40", "--output-len", "8", "--kv-cache-dtype", "f16",
                 "--kv-cache-memory-bytes", "31000", "--output-file", records});
  const json::array& points = out.at("points").as_array();
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[3].at("batch").as_int64(), 5);
  for (const json::value& point : points) {
    EXPECT_EQ(point.at("total_num_tokens").as_int64(), 48 * point.at("batch").as_int64());
    EXPECT_EQ(point.at("preemptions").as_int64(), 0);
    EXPECT_LE(point.at("engine").at("kv_bytes").as_int64(), 31000);
    EXPECT_LE(point.at("output_tokens_per_second").to_number<double>(),
              out.at("output_tokens_per_second").to_number<double>());
  }
  std::ifstream file(records);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    EXPECT_EQ(json::parse(line, "")->at("benchmark").as_string(), "throughput");
  }
  EXPECT_EQ(lines, 4);
  const Finished wide = tare_run({"bench", "throughput", model, "--input-len", "40", "--output-len", "8", "--batch",
                                  "6", "--kv-cache-memory-bytes", "31000"});
  EXPECT_EQ(wide.exit_code, 3);
  EXPECT_THAT(wide.err, HasSubstr("expected at most 5, found 6"));
}

TEST(CliEngine, LatencyHasItsKeys) {
  const std::string model = write_tiny_model("cli-latency");
  const json::object out = tare_json({"bench", "latency", model, "--input-len", "8", "--output-len", "8",
                                      "--batch-size", "2", "--num-iters-warmup", "1", "--num-iters", "3"});
  EXPECT_EQ(out.at("latencies").as_array().size(), 3u);
  EXPECT_GT(out.at("avg_latency").to_number<double>(), 0);
  EXPECT_GE(out.at("percentiles").at("99").to_number<double>(), out.at("percentiles").at("10").to_number<double>());
}

TEST(CliEngine, InterferenceComparesPacedAndFullSteps) {
  json::object config = tiny_config();
  config["max_position_embeddings"] = 4096;
  const std::string model = write_tiny_model("cli-interference", config);
  const json::object out = tare_json({"bench", "interference", model, "--streams", "2", "--input-len", "300"});
  const json::array& points = out.at("points").as_array();
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].at("max_num_batched_tokens").as_string(), "auto");
  EXPECT_EQ(points[1].at("largest_chunk").as_int64(), 300);
  EXPECT_LT(points[0].at("largest_chunk").as_int64(), 300);
  for (const char* key : {"gap_ratio_median", "gap_ratio_p90", "gap_ratio_max"}) {
    EXPECT_TRUE(points[0].as_object().contains(key)) << key;
  }
}

TEST(CliEngine, KvFormatsAreJudgedByLength) {
  const std::string model = write_tiny_model("cli-eval-kv");
  const std::string tokens = scratch_directory("cli-eval-kv-tokens") + "/tokens.txt";
  std::ofstream(tokens) << [] {
    std::string text;
    for (int i = 0; i < 300; ++i) text += std::to_string(i * i % 67) + " ";
    return text;
  }();
  const auto eval = [&](const std::string& dtype) {
    return tare_json({"eval", "kv", model, "--token-file", tokens, "--kv-cache-dtype", dtype, "--lengths", "32,64",
                      "--windows", "3"});
  };
  const json::object int8 = eval("int8"), int4 = eval("int4"), same = eval("f32");
  ASSERT_EQ(int4.at("points").as_array().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto kl = [&](const json::object& of) {
      return of.at("points").as_array()[i].at("kl_mean").to_number<double>();
    };
    EXPECT_EQ(kl(same), 0);
    EXPECT_GT(kl(int8), 0);
    EXPECT_GT(kl(int4), kl(int8));
  }
  EXPECT_THAT(std::string(int8.at("verdict").as_string()), HasSubstr("int8: "));
  EXPECT_EQ(tare_run({"eval", "kv", model, "--token-file", tokens, "--lengths", "1"}).exit_code, 2);
}

// The shares of a model that stays in the cache would be shares of a bandwidth that it does not use.
TEST(CliEngine, ModelsInTheCacheHaveNoShareOfMemory) {
  const std::string model = write_tiny_model("cli-bench-cache");
  const int64_t cache = tare_json({"doctor"}).at("machine").at("l3_bytes").as_int64();
  const json::object out = tare_json({"bench", "model", model, "--prompt-tokens", "8", "--gen-tokens", "8"});
  const json::object& decode = out.at("points").as_array().at(1).as_object();
  ASSERT_EQ(decode.at("kind"), "decode");
  EXPECT_EQ(decode.at("bandwidth_share").is_null(),
            decode.at("bytes_per_step").as_double() <= static_cast<double>(cache));
  EXPECT_GT(decode.at("peak_share").as_double(), 0);
}

TEST(CliEngine, CountsOutOfRangeAreNamed) {
  const std::string model = write_tiny_model("cli-engine-limits");
  const auto refused = [&](std::vector<std::string> args, int code, const std::string& named) {
    const Finished done = tare_run(args);
    EXPECT_EQ(done.exit_code, code) << args[1] << " " << args.back() << done.err;
    EXPECT_THAT(done.err, HasSubstr(named));
    EXPECT_THAT(done.err, Not(HasSubstr("out of memory")));
  };
  refused({"bench", "model", model, "--prompt-tokens", "9000000000000000000"}, 2, "too much to measure");
  refused({"bench", "model", model, "--batch", "1000000"}, 2, "too much to measure");
  refused({"bench", "model", model, "--batch", "65536", "--depth", "16000000"}, 3, "does not fit the machine");
  refused({"bench", "throughput", model, "--input-len", "0"}, 2, "--input-len");
  refused({"bench", "latency", model, "--batch-size", "100000"}, 2, "--batch-size");
  refused({"eval", "ppl", model, "--token-file", model + "/config.json", "--windows", "-1"}, 2, "--windows");
  refused({"eval", "ppl", model, "--token-file", model + "/config.json", "--context", "99999999999"}, 2, "--context");
  refused({"doctor", "--memory", ""}, 2, "--memory");
}

}  // namespace
}  // namespace tare::testing
