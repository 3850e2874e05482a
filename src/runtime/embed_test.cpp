#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tare/engine.h"
#include "testing/fixtures.h"

namespace tare::embed {
namespace {

TEST(Embed, OpensSubmitsAndStreams) {
  TARE_NEEDS_FIXTURE(path, "models/T1");
  std::string error;
  const auto engine = Engine::open({.model = path, .threads = 1, .kv_cache_dtype = "int8"}, error);
  ASSERT_TRUE(engine) << error;
  EXPECT_NE(engine->notes().back().find("KV cache int8: "), std::string::npos);
  const uint64_t ids = engine->submit({1, 5, 9}, {.max_tokens = 6, .ignore_eos = true, .n = 2}, error);
  const uint64_t text = engine->submit_text("hello", {.temperature = 0, .max_tokens = 4, .ignore_eos = true}, error);
  ASSERT_NE(ids, 0u) << error;
  ASSERT_NE(text, 0u) << error;
  std::map<std::pair<uint64_t, int64_t>, size_t> tokens;
  int ends = 0;
  while (!engine->idle()) {
    for (const News& news : engine->step()) {
      tokens[{news.request, news.index}] += news.token_ids.size();
      if (news.finish_reason.empty()) continue;
      EXPECT_EQ(news.finish_reason, "length") << news.error;
      ++ends;
    }
  }
  EXPECT_EQ(ends, 3);
  EXPECT_EQ((tokens[{ids, 0}]), 6u);
  EXPECT_EQ((tokens[{ids, 1}]), 6u);
  EXPECT_EQ((tokens[{text, 0}]), 4u);
}

TEST(Embed, FailuresAreOneLine) {
  std::string error;
  EXPECT_EQ(Engine::open({.model = "no/such/model"}, error), nullptr);
  EXPECT_NE(error.find("no/such/model"), std::string::npos);
  TARE_NEEDS_FIXTURE(path, "models/T1");
  EXPECT_EQ(Engine::open({.model = path, .kv_cache_dtype = "int3"}, error), nullptr);
  EXPECT_NE(error.find("int3"), std::string::npos);
  const auto engine = Engine::open({.model = path, .threads = 1, .max_model_len = 64}, error);
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->submit({}, {}, error), 0u);
  EXPECT_NE(error.find("empty"), std::string::npos);
  EXPECT_EQ(engine->submit(std::vector<int32_t>(64, 1), {}, error), 0u);
  EXPECT_NE(error.find("less than 64 tokens, found 64"), std::string::npos);
  const uint64_t id = engine->submit({1, 2}, {}, error);
  engine->cancel(id);
  const auto news = engine->step();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].finish_reason, "abort");
}

}  // namespace
}  // namespace tare::embed
