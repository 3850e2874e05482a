#include "model/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "checkpoints/checkpoint.h"
#include "testing/fixtures.h"

namespace tare::model {
namespace {

struct Tiny {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<AttentionCache> cache;
  std::vector<int32_t> blocks;
};

Tiny load_tiny(const std::string& path, int threads, const char* kv = "f32",
               machine::Capabilities caps = machine::capabilities()) {
  Tiny tiny{.pool = std::make_unique<ThreadPool>(threads)};
  auto weights = checkpoints::load_checkpoint(path);
  EXPECT_TRUE(weights.ok()) << weights.error().message();
  auto arch = describe_architecture(weights->config);
  EXPECT_TRUE(arch.ok()) << arch.error().message();
  Transformer::Options options{
      .bind = {.registry = kernels::builtin_linear_kernels(), .caps = caps}, .max_batch_tokens = 64, .context = 128};
  auto transformer = Transformer::load(*weights, *arch, options, *tiny.pool);
  EXPECT_TRUE(transformer.ok()) << transformer.error().message();
  tiny.transformer = std::make_unique<Transformer>(std::move(*transformer));
  AttentionCache::Options cache{.num_blocks = 32, .max_batch_tokens = 64, .context = 128, .caps = caps};
  cache.format = *kvcache::parse_kv_format(kv, {}, kvcache::KvScaleRule::kCheckpoint);
  auto made = AttentionCache::make(tiny.transformer->architecture(), cache, threads);
  EXPECT_TRUE(made.ok());
  tiny.cache = std::make_unique<AttentionCache>(std::move(*made));
  // Logical blocks in reverse order: nothing may depend on where a block lies.
  tiny.blocks.resize(32);
  std::iota(tiny.blocks.rbegin(), tiny.blocks.rend(), 0);
  return tiny;
}

// Logits of all positions, prefilled in chunks.
std::vector<float> run(Tiny& tiny, const std::vector<int32_t>& tokens, int64_t chunk) {
  const int64_t vocab = tiny.transformer->architecture().vocab_size;
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab));
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t first = 0; first < static_cast<int64_t>(tokens.size()); first += chunk) {
    const int64_t count = std::min(chunk, static_cast<int64_t>(tokens.size()) - first);
    const SequenceSlice slice{.block_table = tiny.blocks, .first_position = first, .count = count};
    const Batch batch{.tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                      .sequences = {&slice, 1},
                      .logit_rows = std::span(rows).first(static_cast<size_t>(count))};
    const Status status = tiny.transformer->forward(batch, *tiny.cache, logits.data() + first * vocab);
    EXPECT_TRUE(status.ok()) << status.error().message();
  }
  return logits;
}

std::vector<int32_t> reference_tokens(const json::object& reference) {
  std::vector<int32_t> out;
  for (const json::value& id : reference.at("token_ids").get_array())
    out.push_back(static_cast<int32_t>(*json::as_int(id)));
  return out;
}

class ModelFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelFixture, LogitsMatchTheReference) {
  TARE_NEEDS_FIXTURE(path, std::string("models/") + GetParam());
  const json::value document = *json::parse(tare::testing::read_fixture(path + "/reference.json"), "reference");
  const json::object& reference = document.get_object();
  const std::vector<int32_t> tokens = reference_tokens(reference);
  std::vector<float> expected;
  for (const json::value& v : reference.at("logits").get_array())
    expected.push_back(static_cast<float>(*json::as_number(v)));
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  const float bound = 1e-3f * (*high - *low);

  Tiny tiny = load_tiny(path, 2);
  const std::vector<float> logits = run(tiny, tokens, 64);
  const auto last = static_cast<size_t>(*json::as_int(reference.at("position"))) * expected.size();
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(logits[last + i] - expected[i]));
  EXPECT_LE(worst, bound);
  RecordProperty("max_abs_difference", std::to_string(worst));

  // P1: any chunk size, thread count and table gives the same bits.
  for (const int64_t chunk : {1, 3, 7}) EXPECT_EQ(run(tiny, tokens, chunk), logits) << chunk;
  Tiny alone = load_tiny(path, 1);
  EXPECT_EQ(run(alone, tokens, 5), logits);
}

TEST_P(ModelFixture, NeighboursInABatchChangeNothing) {
  TARE_NEEDS_FIXTURE(path, std::string("models/") + GetParam());
  for (const char* kv : {"f32", "int8", "int4"}) {
    Tiny tiny = load_tiny(path, 2, kv);
    const int64_t vocab = tiny.transformer->architecture().vocab_size;
    const std::vector<int32_t> first = {1, 5, 9, 13, 17, 21, 25};
    const std::vector<int32_t> second = {1, 7, 7, 200, 3};
    const std::vector<float> first_alone = run(tiny, first, 64);
    const std::vector<float> second_alone = run(tiny, second, 64);

    std::vector<int32_t> tokens = second;
    tokens.insert(tokens.end(), first.begin(), first.end());
    const SequenceSlice slices[] = {{.block_table = std::span(tiny.blocks).first(8), .count = 5},
                                    {.block_table = std::span(tiny.blocks).subspan(8), .count = 7}};
    std::vector<int32_t> rows(12);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> logits(12 * static_cast<size_t>(vocab));
    ASSERT_TRUE(tiny.transformer
                    ->forward({.tokens = tokens, .sequences = slices, .logit_rows = rows}, *tiny.cache, logits.data())
                    .ok());
    EXPECT_TRUE(std::equal(second_alone.begin(), second_alone.end(), logits.begin())) << kv;
    EXPECT_TRUE(std::equal(first_alone.begin(), first_alone.end(), logits.begin() + 5 * vocab)) << kv;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelFixture, ::testing::Values("T1", "T2"));

TEST(Transformer, ProfileBooksEveryOperation) {
  TARE_NEEDS_FIXTURE(path, "models/T1");
  Tiny tiny = load_tiny(path, 1);
  const Architecture& arch = tiny.transformer->architecture();
  int64_t stored = 0, head = 0;
  for (const LinearRecord& record : tiny.transformer->records()) {
    (record.name == "lm_head" ? head : stored) += record.stored_bytes;
  }
  StepProfile profile;
  tiny.transformer->set_profile(&profile);
  const std::vector<float> logits = run(tiny, {1, 5, 9, 13, 17}, 2);  // three passes
  tiny.transformer->set_profile(nullptr);
  EXPECT_EQ(run(tiny, {1, 5, 9, 13, 17}, 2), logits);

  int64_t bytes = 0;
  for (const StepOp op : {StepOp::kQkv, StepOp::kOut, StepOp::kGateUp, StepOp::kDown}) bytes += profile.row(op).bytes;
  EXPECT_EQ(bytes, 3 * stored);
  EXPECT_EQ(profile.row(StepOp::kLogitProduct).bytes, 3 * head);
  EXPECT_EQ(profile.row(StepOp::kLogitProduct).calls, 3);
  for (const StepOp op : {StepOp::kQkvInput, StepOp::kTurn, StepOp::kStore, StepOp::kAttention, StepOp::kDownAdd}) {
    EXPECT_EQ(profile.row(op).calls, 3 * arch.layers) << step_op_name(op);
    EXPECT_GT(profile.row(op).seconds, 0) << step_op_name(op);
  }
  // f32: keys and values of 2, 4 and 5 tokens.
  EXPECT_EQ(profile.row(StepOp::kAttention).bytes, (2 + 4 + 5) * arch.layers * arch.kv_heads * arch.head_dim * 2 * 4);
}

TEST(Transformer, RefusesWhatItCannotRun) {
  TARE_NEEDS_FIXTURE(path, "models/T1");
  Tiny tiny = load_tiny(path, 1);
  std::vector<float> logits(512);
  const std::vector<int32_t> row = {0};
  for (const int32_t bad : {-1, 512, 1 << 30}) {
    const std::vector<int32_t> tokens = {bad};
    const SequenceSlice slice{.block_table = tiny.blocks, .count = 1};
    EXPECT_FALSE(
        tiny.transformer
            ->forward({.tokens = tokens, .sequences = {&slice, 1}, .logit_rows = row}, *tiny.cache, logits.data())
            .ok());
  }
  const std::vector<int32_t> tokens = {1};
  const SequenceSlice beyond{.block_table = tiny.blocks, .first_position = 128, .count = 1};
  EXPECT_FALSE(
      tiny.transformer
          ->forward({.tokens = tokens, .sequences = {&beyond, 1}, .logit_rows = row}, *tiny.cache, logits.data())
          .ok());
}

}  // namespace
}  // namespace tare::model
