// The small real model against numbers that transformers made from the same weights (fixtures/smollm2).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/json.h"
#include "checkpoints/text_assets.h"
#include "eval/windows.h"
#include "runtime/load.h"
#include "runtime/scorer.h"
#include "testing/fixtures.h"

namespace tare {
namespace {

struct Loaded {
  ThreadPool pool{owned_cpu_count()};
  runtime::LoadedModel model;
  std::unique_ptr<runtime::Scorer> scorer;

  explicit Loaded(const std::string& path, int64_t context) {
    runtime::LoadOptions options{.caps = machine::capabilities(), .max_batch_tokens = 128, .context = context};
    auto loaded = runtime::load_model(path, options, pool);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message();
    model = std::move(*loaded);
    model::AttentionCache::Options cache{.caps = machine::capabilities()};
    cache.format = *kvcache::parse_kv_format("f32", {}, kvcache::KvScaleRule::kCheckpoint);
    auto made = runtime::Scorer::make(*model.transformer, cache, context, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    scorer = std::make_unique<runtime::Scorer>(std::move(*made));
  }
};

std::vector<int32_t> ints(const json::value& list) {
  std::vector<int32_t> out;
  for (const json::value& v : list.get_array()) out.push_back(static_cast<int32_t>(*json::as_int(v)));
  return out;
}

json::value document(const std::string& path) {
  return *json::parse(tare::testing::read_fixture(path), path);
}

TEST(RealModel, LogitsAndGreedyTokens) {
  TARE_NEEDS_DEMO_MODEL(path);
  TARE_NEEDS_FIXTURE(fixture, "smollm2/logits.json");
  Loaded loaded(path, 256);
  const auto vocab = loaded.scorer->vocab_size();
  const json::value reference = document(fixture);
  for (const json::value& prompt : reference.at("prompts").get_array()) {
    const json::value& expected = prompt.at("f32");
    std::vector<int32_t> tokens = ints(prompt.at("prompt_ids"));
    const std::vector<int32_t> greedy = ints(expected.at("greedy").at("ids"));
    std::vector<float> row(static_cast<size_t>(vocab));
    const auto keep_last = [&](int64_t first, int64_t rows, const float* logits) -> Status {
      (void)first;
      std::copy_n(logits + (rows - 1) * vocab, vocab, row.data());
      return {};
    };
    ASSERT_TRUE(loaded.scorer->run(tokens, keep_last).ok());
    double previous = INFINITY;
    for (const json::value& pair : expected.at("top20").get_array()) {
      const auto id = static_cast<size_t>(*json::as_int(pair.get_array()[0]));
      const double logit = *json::as_number(pair.get_array()[1]);
      EXPECT_NEAR(row[id], logit, 2e-3) << prompt.at("name");
      EXPECT_LE(row[id], previous + 4e-3);  // same order up to ties
      previous = row[id];
    }
    // Greedy, one token at a time over the same cache.
    for (size_t step = 0; step < greedy.size(); ++step) {
      const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      ASSERT_EQ(best, greedy[step]) << prompt.at("name") << " step " << step;
      tokens.push_back(best);
      ASSERT_TRUE(loaded.scorer->piece(tokens, static_cast<int64_t>(tokens.size()) - 1, 1, row.data()).ok());
    }
  }
}

TEST(RealModel, WindowsOfWikiText) {
  TARE_NEEDS_DEMO_MODEL(path);
  TARE_NEEDS_FIXTURE(fixture, "smollm2/ppl.json");
  TARE_NEEDS_FIXTURE(text_path, "../data/wikitext-2-raw/wiki.test.joined.txt");
  const text::Tokenizer tokenizer = *checkpoints::load_tokenizer(path);
  const text::Encoding encoded = *tokenizer.encode(tare::testing::read_fixture(text_path), {.add_special = false});
  const json::value reference = document(fixture);
  EXPECT_EQ(static_cast<int64_t>(encoded.ids.size()), *json::as_int(reference.at("text").at("tokens")));
  const std::vector<int32_t> ids(encoded.ids.begin(), encoded.ids.end());
  Loaded loaded(path, 512);
  const eval::Perplexity result = *eval::perplexity(*loaded.scorer, ids, {.windows = 2}, loaded.pool);
  const json::array& expected = reference.at("first_windows").at("f32").at("window_nll").get_array();
  for (size_t w = 0; w < 2; ++w) EXPECT_NEAR(result.window_nll[w], *json::as_number(expected[w]), 1e-4) << w;
}

TEST(RealModel, TokenizerAndChatTemplate) {
  TARE_NEEDS_DEMO_MODEL(path);
  TARE_NEEDS_FIXTURE(token_path, "smollm2/tokens.json");
  TARE_NEEDS_FIXTURE(chat_path, "smollm2/chat.json");
  const text::Tokenizer tokenizer = *checkpoints::load_tokenizer(path);
  const auto encode = [&](std::string_view text, bool specials_as_text) {
    const text::Encoding encoded = *tokenizer.encode(text, {.add_special = true, .specials_as_text = specials_as_text});
    return std::vector<int32_t>(encoded.ids.begin(), encoded.ids.end());
  };
  const json::value tokens = document(token_path);
  for (const json::value& one : tokens.at("texts").get_array()) {
    const std::string text(one.at("text").get_string());
    EXPECT_EQ(encode(text, false), ints(one.at("ids"))) << one.at("name");
    EXPECT_EQ(encode(text, true), ints(one.at("ids_specials_as_text"))) << one.at("name");
    const std::vector<int32_t> ids = ints(one.at("ids"));
    const std::vector<text::TokenId> token_ids(ids.begin(), ids.end());
    EXPECT_EQ(*tokenizer.decode(token_ids), std::string(one.at("decoded").get_string())) << one.at("name");
    EXPECT_EQ(*tokenizer.decode(token_ids, true), std::string(one.at("decoded_skip_special").get_string()));
  }
  const auto assets = *checkpoints::load_chat_template(path);
  ASSERT_TRUE(assets);
  const json::value chats = document(chat_path);
  for (const json::value& one : chats.at("conversations").get_array()) {
    for (const bool prompt : {false, true}) {
      const json::value& expected = one.at(prompt ? "with_generation_prompt" : "without_generation_prompt");
      const std::string text = *assets->chat_template.render({.messages = &one.at("messages").get_array(),
                                                              .add_generation_prompt = prompt,
                                                              .special_tokens = assets->special_tokens});
      EXPECT_EQ(text, std::string(expected.at("text").get_string()));
      EXPECT_EQ(encode(text, false), ints(expected.at("ids")));
    }
  }
}

}  // namespace
}  // namespace tare
