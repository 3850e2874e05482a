// Promise P1 over the whole path: what a request gets does not depend on batch, neighbours, chunks, preemption or cache
// hits, for every stored form of weights and every form of the cache.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/load.h"
#include "runtime/tiny_model_for_tests.h"
#include "testing/fixtures.h"

namespace tare::runtime {
namespace {

constexpr const char* kCaches[] = {"f32", "int4", "int8", "fp8_e4m3", "f16", "int8,int4", "bf16", "fp8_e5m2"};

Transcripts transcripts(LoadedModel& model, ThreadPool& pool, const std::string& kv, bool small) {
  const int64_t layers = model.transformer->architecture().layers;
  auto engine = Engine::make(*model.transformer, std::nullopt,
                             {.cache = cache_of(kv, small ? 6 : 64, 8, layers),
                              .max_num_seqs = small ? 5 : 1,
                              .max_batched_tokens = small ? 13 : 64,
                              .prefix_caching = small},
                             pool);
  EXPECT_TRUE(engine.ok()) << engine.error().message();
  for (int i = 0; i < 5; ++i) {
    std::vector<int32_t> prompt = {1, 9, 33, 4, 250, 17, 3, 77, 5, 6};
    for (int j = 0; j < 3 * i; ++j) prompt.push_back(11 * i + 7 * j);
    EXPECT_TRUE(engine
                    ->submit({.prompt = prompt,
                              .params = {.temperature = 0.7,
                                         .max_tokens = 12,
                                         .ignore_eos = true,
                                         .seed = static_cast<uint64_t>(i),
                                         .logprobs = 0}})
                    .ok());
  }
  Transcripts out = drain(*engine);
  if (small) {
    EXPECT_GT(engine->stats().scheduler.preemptions, 0);
    EXPECT_GT(engine->stats().blocks.hit_tokens, 0);
  }
  return out;
}

TEST(Determinism, EveryStoredFormOfWeightsAndOfTheCache) {
  TARE_NEEDS_FIXTURE(folder, "checkpoints");
  TARE_NEEDS_FIXTURE(models, "models");
  std::vector<std::string> paths = {models + "/T1", models + "/T2"};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_directory()) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  ThreadPool pool(2);
  std::set<std::string> products;
  size_t next_cache = 0;
  for (const std::string& path : paths) {
    for (const bool int8_activations : {false, true}) {
      LoadOptions options{
          .activations = {.int8 = int8_activations}, .caps = machine::capabilities(), .max_batch_tokens = 64};
      auto model = load_model(path, options, pool);
      if (!model.ok()) {
        // Damaged on purpose, of an architecture that does not run, or a form of weights that is refused.
        std::printf("[ skipped ] %s: %s\n", path.c_str(), model.error().message().substr(0, 90).c_str());
        break;
      }
      // Files that bring the same products as one before are not run again.
      bool news = false;
      for (const model::LinearRecord& record : model->transformer->records()) {
        news |= products.insert(record.weight + " x " + record.activation + " in " + record.kernel).second;
      }
      if (!news) continue;
      const std::string kv = kCaches[next_cache++ % std::size(kCaches)];
      EXPECT_EQ(transcripts(*model, pool, kv, true), transcripts(*model, pool, kv, false))
          << path << ", KV " << kv << (int8_activations ? ", int8 activations" : "");
    }
  }
  EXPECT_GE(products.size(), 30u);
}

}  // namespace
}  // namespace tare::runtime
