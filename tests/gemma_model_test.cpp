// A real model of another kind: Gemma-3-270M as a Q4_K_M GGUF, against transformers on the same weights
// (tools/goldens/gemma3_270m.py). Runs where tools/get_gemma_model.sh has fetched it; nothing depends on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "checkpoints/text_assets.h"
#include "eval/windows.h"
#include "runtime/load.h"
#include "runtime/scorer.h"
#include "testing/fixtures.h"

namespace tare {
namespace {

std::vector<int32_t> ints(const json::value& list) {
  std::vector<int32_t> out;
  for (const json::value& v : list.get_array()) out.push_back(static_cast<int32_t>(*json::as_int(v)));
  return out;
}

TEST(GemmaModel, TokensLogitsGreedyAndLikelihood) {
  const char* set = std::getenv("TARE_GEMMA_MODEL");
  const std::string path = set ? set : "build/demo/gemma-3-270m-q4_k_m.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "skipped: no Gemma-3-270M (tools/get_gemma_model.sh)";
  const std::string reference_path = "tests/data/gemma3-270m/reference.json";
  const json::value reference = *json::parse(tare::testing::read_fixture(reference_path), reference_path);

  const text::Tokenizer tokenizer = *checkpoints::load_tokenizer(path);
  for (const json::value& row : reference.at("texts").get_array()) {
    const std::string text(row.at("text").get_string());
    const text::Encoding encoded = *tokenizer.encode(text);
    EXPECT_EQ(std::vector<int32_t>(encoded.ids.begin(), encoded.ids.end()), ints(row.at("ids"))) << text;
  }

  const std::vector<int32_t> tokens = ints(reference.at("token_ids"));
  const auto context = static_cast<int64_t>(tokens.size());
  ThreadPool pool{owned_cpu_count()};
  runtime::LoadOptions options{.caps = machine::capabilities(), .max_batch_tokens = 128, .context = context};
  auto model = runtime::load_model(path, options, pool);
  ASSERT_TRUE(model.ok()) << model.error().message();
  model::AttentionCache::Options cache{.caps = machine::capabilities()};
  cache.format = *kvcache::parse_kv_format("f32", {}, kvcache::KvScaleRule::kCheckpoint);
  auto scorer = runtime::Scorer::make(*model->transformer, cache, context, pool);
  ASSERT_TRUE(scorer.ok()) << scorer.error().message();
  const int64_t vocab = scorer->vocab_size();

  // Logits beyond the sliding window of 512, and the likelihood of the text.
  double nll = 0;
  const auto look = [&](int64_t first, int64_t rows, const float* logits) -> Status {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t position = first + r;
      const float* row = logits + r * vocab;
      if (const json::value* top = json::find(reference.at("logits").get_object(), std::to_string(position))) {
        for (const json::value& pair : top->get_array()) {
          EXPECT_NEAR(row[*json::as_int(pair.get_array()[0])], *json::as_number(pair.get_array()[1]), 2e-3) << position;
        }
      }
      if (position + 1 >= context) continue;
      const double highest = *std::max_element(row, row + vocab);
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]) - highest);
      nll += highest + std::log(sum) - static_cast<double>(row[tokens[static_cast<size_t>(position) + 1]]);
    }
    return {};
  };
  ASSERT_TRUE(scorer->run(tokens, look).ok());
  EXPECT_NEAR(nll / static_cast<double>(context - 1), *json::as_number(reference.at("nll_mean")), 1e-4);

  // Greedy, one token at a time.
  std::vector<int32_t> text = ints(reference.at("prompt_ids"));
  std::vector<float> row(static_cast<size_t>(vocab));
  const auto keep_last = [&](int64_t, int64_t rows, const float* logits) -> Status {
    std::copy_n(logits + (rows - 1) * vocab, vocab, row.data());
    return {};
  };
  ASSERT_TRUE(scorer->run(text, keep_last).ok());
  for (const int32_t expected : ints(reference.at("greedy"))) {
    const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    ASSERT_EQ(best, expected) << "token " << text.size();
    text.push_back(best);
    ASSERT_TRUE(scorer->piece(text, static_cast<int64_t>(text.size()) - 1, 1, row.data()).ok());
  }
}

}  // namespace
}  // namespace tare
