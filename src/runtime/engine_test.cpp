#include "runtime/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "runtime/tiny_model_for_tests.h"

namespace tare::runtime {
namespace {

Engine engine_of(TinyModel& model, EngineOptions options) {
  auto made = Engine::make(*model.transformer, std::nullopt, std::move(options), *model.pool);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return std::move(made).value();
}

std::vector<int32_t> random_tokens(std::mt19937& random, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(random() % TinyModel::kVocab));
  return out;
}

// 64 requests that share beginnings, of all kinds.
std::vector<Request> mixed_requests() {
  std::mt19937 random(11);
  std::vector<std::vector<int32_t>> shared;
  for (int i = 0; i < 4; ++i) shared.push_back(random_tokens(random, 35));
  std::vector<Request> out;
  for (int i = 0; i < 64; ++i) {
    Request request;
    const auto& beginning = shared[random() % 4];
    request.prompt.assign(beginning.begin(), beginning.begin() + static_cast<ptrdiff_t>(random() % 36));
    const std::vector<int32_t> own = random_tokens(random, 1 + static_cast<int64_t>(random() % 30));
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.params = {.temperature = i % 3 == 0 ? 0.0 : 0.9,
                      .top_k = i % 5 == 0 ? 20 : 0,
                      .top_p = i % 7 == 0 ? 0.8 : 1.0,
                      .frequency_penalty = i % 4 == 0 ? 0.5 : 0.0,
                      .max_tokens = 3 + static_cast<int64_t>(random() % 38),
                      .seed = static_cast<uint64_t>(i),
                      .logprobs = 2,
                      .prompt_logprobs = i % 9 == 0 ? 0 : -1};
    request.n = i % 6 == 0 ? 3 : 1;
    request.priority = i % 3;
    if (i % 10 == 0) request.cache_salt = "own";
    out.push_back(std::move(request));
  }
  return out;
}

struct Format {
  std::string dtype;
  bool calculate = false;
};

class MixedLoad : public ::testing::TestWithParam<Format> {};

TEST_P(MixedLoad, EachTextEqualsItsRunAlone) {
  const Format format = GetParam();
  TinyModel lonely = TinyModel::make(1);
  TinyModel model = TinyModel::make(2);
  const std::vector<Request> requests = mixed_requests();

  Transcripts alone;
  {
    // One at a time on one thread, no cache, room for all.
    auto cache = cache_of(format.dtype, 64, 16, 2, format.calculate);
    Engine engine = engine_of(lonely, {.cache = cache, .prefix_caching = false});
    for (const Request& request : requests) {
      ASSERT_TRUE(engine.submit(request).ok());
      for (auto& [key, transcript] : drain(engine)) alone.emplace(key, std::move(transcript));
    }
    EXPECT_EQ(engine.stats().scheduler.preemptions, 0);
  }

  // The budget holds 23 blocks of 8 tokens, while up to 12 sequences of up to 106 tokens want to run.
  auto cache = cache_of(format.dtype, 1, 8, 2, format.calculate);
  const int64_t block_bytes =
      8 * *kvcache::kv_bytes_per_token(model::cache_options(model.transformer->architecture(), cache));
  const int64_t budget = 23 * block_bytes + block_bytes / 2;
  cache.num_blocks = *kvcache::blocks_for_budget(budget, block_bytes);
  Engine engine = engine_of(model, {.cache = cache,
                                    .max_model_len = 23 * 8,
                                    .max_num_seqs = 12,
                                    .max_batched_tokens = 40,
                                    .policy = SchedulingPolicy::kPriority});
  EXPECT_LE(engine.kv_bytes(), budget);
  EXPECT_EQ(cache.num_blocks, 23);
  for (const Request& request : requests) ASSERT_TRUE(engine.submit(request).ok());
  const Transcripts together = drain(engine);

  ASSERT_EQ(together.size(), alone.size());
  for (const auto& [key, transcript] : alone) {
    ASSERT_EQ(together.count(key), 1u);
    EXPECT_EQ(together.at(key), transcript) << "request " << key.first << " output " << key.second;
  }
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.blocks_referenced, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_GT(stats.scheduler.preemptions, 0);
  EXPECT_GT(stats.blocks.hit_tokens, 0);
  EXPECT_GT(stats.blocks.evictions, 0);
  EXPECT_GT(stats.blocks.copies, 0);
  RecordProperty("preemptions", std::to_string(stats.scheduler.preemptions));
}

INSTANTIATE_TEST_SUITE_P(KvFormats, MixedLoad,
                         ::testing::Values(Format{"f16"}, Format{"int8"}, Format{"int4"}, Format{"int8,int4"},
                                           Format{"fp8_e4m3"}, Format{"fp8_e5m2", true}),
                         [](const auto& one) {
                           std::string name = one.param.dtype + (one.param.calculate ? "_calculated" : "");
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

TEST(Engine, ChunksThreadsAndBlockSizesChangeNothing) {
  std::optional<Transcripts> first;
  for (const int threads : {1, 3}) {
    for (const int64_t batch : {1, 5, 64}) {
      TinyModel model = TinyModel::make(threads);
      Engine engine =
          engine_of(model, {.cache = cache_of("int4", 64, 16, 2), .max_num_seqs = 1, .max_batched_tokens = batch});
      std::mt19937 random(5);
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(engine
                        .submit({.prompt = random_tokens(random, 20 + 7 * i),
                                 .params = {.temperature = 0.8, .max_tokens = 20, .logprobs = 0}})
                        .ok());
      }
      Transcripts now = drain(engine);
      if (!first)
        first = std::move(now);
      else
        EXPECT_EQ(now, *first) << threads << " threads, batch " << batch;
    }
  }
}

TEST(Engine, OutputsOfOnePromptDifferAndTheFirstIsThatOfOne) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("f16", 64, 16, 2)});
  std::mt19937 random(5);
  Request request{.prompt = random_tokens(random, 9), .params = {.max_tokens = 12, .seed = 7}, .n = 4};
  ASSERT_TRUE(engine.submit(request).ok());
  const Transcripts four = drain(engine);
  ASSERT_EQ(four.size(), 4u);
  request.n = 1;
  ASSERT_TRUE(engine.submit(request).ok());
  const Transcripts one = drain(engine);
  EXPECT_EQ(one.begin()->second, four.begin()->second);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT_NE(four.at({1, i}), four.at({1, j}));
  }
}

TEST(Engine, CancelTakesEffectWithinAStepAtEveryStage) {
  TinyModel model = TinyModel::make(1);
  std::mt19937 random(5);
  const Request request{.prompt = random_tokens(random, 30), .params = {.max_tokens = 12}, .n = 2};
  // Steps before the cancel: 0 = in the queue, 1 and 2 = in the prompt, then decoding.
  for (const int steps : {0, 1, 2, 3, 5}) {
    Engine engine =
        engine_of(model, {.cache = cache_of("f16", 64, 16, 2), .max_num_seqs = 2, .max_batched_tokens = 11});
    const RequestId id = *engine.submit(request);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step().ok());
    engine.cancel(id);
    engine.cancel(id + 100);  // unknown: ignored
    const auto events = engine.step();
    ASSERT_TRUE(events.ok());
    ASSERT_EQ(events->size(), 2u) << steps;
    for (const Event& event : *events) EXPECT_EQ(event.finish, FinishReason::kAborted);
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(engine.stats().blocks_referenced, 0);
  }
}

TEST(Engine, ADeadlineEndsARequestAndOnlyThat) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("f16", 64, 16, 2)});
  std::mt19937 random(5);
  const RequestId late = *engine.submit({.prompt = random_tokens(random, 4),
                                         .params = {.max_tokens = 5},
                                         .deadline = Clock::now() - std::chrono::seconds(1)});
  const RequestId fine = *engine.submit({.prompt = random_tokens(random, 4),
                                         .params = {.max_tokens = 5},
                                         .deadline = Clock::now() + std::chrono::hours(1)});
  const Transcripts out = drain(engine);
  EXPECT_EQ(out.at({late, 0}).finish, FinishReason::kDeadline);
  EXPECT_TRUE(out.at({late, 0}).tokens.empty());
  EXPECT_EQ(out.at({fine, 0}).finish, FinishReason::kLength);
}

TEST(Engine, NonFiniteLogitsEndOneRequest) {
  TinyModel model = TinyModel::make(1, 256, 42);
  Engine engine = engine_of(model, {.cache = cache_of("f32", 64, 16, 2)});
  const Request poisoned{.prompt = {1, 2, 42, 3}, .params = {.max_tokens = 5}, .n = 2};
  Request good{.prompt = {1, 2, 5, 3}, .params = {.temperature = 0, .max_tokens = 5}};
  good.params.bad_words = {{42}};
  const RequestId bad_id = *engine.submit(poisoned);
  const RequestId good_id = *engine.submit(good);
  std::vector<Event> ends;
  while (!engine.idle()) {
    auto events = engine.step();
    ASSERT_TRUE(events.ok());
    for (Event& event : *events) {
      if (event.finish) ends.push_back(std::move(event));
    }
  }
  ASSERT_EQ(ends.size(), 3u);
  for (const Event& end : ends) {
    if (end.id == good_id) {
      EXPECT_EQ(end.finish, FinishReason::kLength);
      continue;
    }
    EXPECT_EQ(end.id, bad_id);
    EXPECT_EQ(end.finish, FinishReason::kError);
    EXPECT_EQ(end.error->kind, ErrorKind::kNotFinite);
    EXPECT_NE(end.error->message().find("logits are not finite"), std::string::npos);
  }
  EXPECT_EQ(engine.stats().not_finite, 2);
  EXPECT_EQ(engine.stats().blocks_referenced, 0);
}

TEST(Engine, AFullContextEndsWithLength) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("int8", 3, 8, 2), .max_model_len = 21});
  ASSERT_TRUE(engine.submit({.prompt = {1, 2, 3, 4, 5}, .params = {.max_tokens = 1000}}).ok());
  const Transcripts out = drain(engine);
  EXPECT_EQ(out.begin()->second.finish, FinishReason::kLength);
  EXPECT_EQ(out.begin()->second.tokens.size(), 16u);
}

TEST(Engine, RefusesAtTheDoorWithNumbers) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("f16", 4, 8, 2), .max_num_seqs = 4});
  const auto refusal = [&](Request request) {
    const auto submitted = engine.submit(std::move(request));
    return submitted.ok() ? std::string("accepted") : submitted.error().message();
  };
  EXPECT_NE(refusal({}).find("empty"), std::string::npos);
  EXPECT_NE(refusal({.prompt = {-1}}).find("0..100"), std::string::npos);
  EXPECT_NE(refusal({.prompt = {101}}).find("0..100"), std::string::npos);
  EXPECT_NE(refusal({.prompt = std::vector<int32_t>(32, 1)}).find("less than 32 tokens, found 32"), std::string::npos);
  EXPECT_NE(refusal({.prompt = {1}, .n = 5}).find("1 to 4"), std::string::npos);
  EXPECT_NE(refusal({.prompt = {1}, .params = {.stop = {"x"}}}).find("needs a tokenizer"), std::string::npos);
  EXPECT_NE(refusal({.prompt = {1}, .params = {.max_tokens = 0}}).find("max_tokens"), std::string::npos);
  EXPECT_TRUE(engine.idle());
  const auto wide = Engine::make(*model.transformer, std::nullopt,
                                 {.cache = cache_of("f16", 4, 8, 2), .max_model_len = 33}, *model.pool);
  EXPECT_EQ(wide.error().kind, ErrorKind::kDoesNotFit);
}

TEST(Engine, AProcessorMasksAndItsErrorEndsTheRequest) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("f16", 64, 16, 2)});
  // A toy grammar: even and odd ids in turn.
  const LogitsProcessor turns{"turns", [](const SamplingHistory& history, std::span<float> logits) -> Status {
                                for (size_t i = 0; i < logits.size(); ++i) {
                                  if (i % 2 != history.output.size() % 2) logits[i] = -INFINITY;
                                }
                                return {};
                              }};
  const LogitsProcessor broken{"broken", [](const SamplingHistory& history, std::span<float>) -> Status {
                                 if (history.output.size() < 2) return {};
                                 return invalid_input("no rule matches");
                               }};
  const RequestId a = *engine.submit({.prompt = {1}, .params = {.max_tokens = 9}, .n = 2, .processors = {turns}});
  const RequestId b = *engine.submit({.prompt = {1}, .params = {.max_tokens = 9}, .processors = {broken}});
  const Transcripts out = drain(engine);
  for (int64_t index : {0, 1}) {
    const Transcript& transcript = out.at({a, index});
    ASSERT_EQ(transcript.tokens.size(), 9u);
    for (size_t i = 0; i < 9; ++i) EXPECT_EQ(transcript.tokens[i] % 2, static_cast<int32_t>(i % 2));
  }
  EXPECT_EQ(out.at({b, 0}).tokens.size(), 2u);
  EXPECT_EQ(out.at({b, 0}).finish, FinishReason::kError);
}

TEST(Engine, TimesAndCachedTokensStandInTheLastEvent) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("f16", 64, 8, 2)});
  std::mt19937 random(5);
  const Request request{.prompt = random_tokens(random, 30), .params = {.max_tokens = 4}};
  for (const int64_t cached : {0, 24}) {
    ASSERT_TRUE(engine.submit(request).ok());
    std::optional<Event> end;
    while (!engine.idle()) {
      const auto events = engine.step();
      ASSERT_TRUE(events.ok());
      for (const Event& event : *events) {
        if (event.finish) end = event;
      }
    }
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->cached_tokens, cached);
    EXPECT_LE(end->timing.arrival, end->timing.scheduled);
    EXPECT_LE(end->timing.scheduled, end->timing.first_token);
  }
}

TEST(Engine, ScoresThePromptAndMayStopThere) {
  TinyModel model = TinyModel::make(1);
  Engine engine = engine_of(model, {.cache = cache_of("f32", 64, 8, 2)});
  std::mt19937 random(5);
  // Longer than one piece of scored rows, twice: the second must not come from the cache.
  const Request request{.prompt = random_tokens(random, 45), .params = {.max_tokens = 0, .prompt_logprobs = 1}, .n = 2};
  std::vector<double> first;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine.submit(request).ok());
    const Transcripts out = drain(engine);
    ASSERT_EQ(out.size(), 2u);
    const Transcript& scored = out.begin()->second;
    EXPECT_EQ(scored.prompt_logprobs.size(), 44u);
    EXPECT_TRUE(scored.tokens.empty());
    EXPECT_EQ(scored.finish, FinishReason::kLength);
    if (i == 0)
      first = scored.prompt_logprobs;
    else
      EXPECT_EQ(scored.prompt_logprobs, first);
  }
  for (const double logprob : first) EXPECT_LT(logprob, 0);
}

}  // namespace
}  // namespace tare::runtime
