// Tiny seeded models of every family against the logits of transformers (tools/goldens/families.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "checkpoints/checkpoint.h"
#include "model/transformer.h"
#include "testing/fixtures.h"

namespace tare::model {
namespace {

constexpr const char* kFolder = "tests/data/families";

std::vector<std::string> cases() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.is_directory()) out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(FamilyGoldens, LogitsOfTransformers) {
  ASSERT_GE(cases().size(), families().size());
  ThreadPool pool(1);
  for (const std::string& name : cases()) {
    SCOPED_TRACE(name);
    const std::string path = std::string(kFolder) + "/" + name;
    const auto weights = checkpoints::load_checkpoint(path);
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    const auto arch = describe_architecture(weights->config);
    ASSERT_TRUE(arch.ok()) << arch.error().message();
    const json::value reference = *json::parse(tare::testing::read_fixture(path + "/reference.json"), name);
    std::vector<int32_t> tokens;
    for (const json::value& id : reference.at("token_ids").get_array()) {
      tokens.push_back(static_cast<int32_t>(*json::as_int(id)));
    }
    const auto length = static_cast<int64_t>(tokens.size());
    const machine::Capabilities caps = machine::capabilities();
    Transformer::Options options{.bind = {.registry = kernels::builtin_linear_kernels(), .caps = caps},
                                 .max_batch_tokens = 128,
                                 .context = length};
    auto transformer = Transformer::load(*weights, *arch, options, pool);
    ASSERT_TRUE(transformer.ok()) << transformer.error().message();
    AttentionCache::Options cache_options{.num_blocks = 8, .max_batch_tokens = 128, .context = length, .caps = caps};
    cache_options.format = *kvcache::parse_kv_format("f32", {}, kvcache::KvScaleRule::kCheckpoint);
    auto cache = AttentionCache::make(*arch, cache_options, 1);
    ASSERT_TRUE(cache.ok());
    const std::vector<int32_t> blocks = {0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> logits(tokens.size() * static_cast<size_t>(arch->vocab_size));
    const SequenceSlice slice{.block_table = blocks, .count = length};
    const Status status =
        transformer->forward({.tokens = tokens, .sequences = {&slice, 1}, .logit_rows = rows}, *cache, logits.data());
    ASSERT_TRUE(status.ok()) << status.error().message();

    for (const auto& [row, values] : reference.at("logits").get_object()) {
      const json::array& expected = values.get_array();
      double low = INFINITY, high = -INFINITY, worst = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        const double want = *json::as_number(expected[i]);
        const auto at = static_cast<size_t>(std::stoi(std::string(row))) * expected.size() + i;
        low = std::min(low, want);
        high = std::max(high, want);
        worst = std::max(worst, std::abs(want - static_cast<double>(logits[at])));
      }
      EXPECT_LE(worst, 1e-3 * (high - low)) << "position " << row;
    }
  }
}

}  // namespace
}  // namespace tare::model
