#include "quantize/block_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "checkpoints/checkpoint.h"
#include "model/weight_plan.h"
#include "quantize/transform.h"
#include "testing/fixtures.h"

namespace tare::quantize {
namespace {

using model::Site;

struct Fixture {
  explicit Fixture(const std::string& path, int threads = 2)
      : pool(threads), products(kernels::builtin_linear_kernels(), machine::capabilities(), pool) {
    source = std::make_shared<const tensor::ModelWeights>(*checkpoints::load_checkpoint(path));
    arch = *model::describe_architecture(source->config);
    for (const int64_t length : {100, 1031, 17, 300}) {
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<int32_t>((i * i * 31 + i * 7 + length) % arch.vocab_size));
      }
      calibration.tokens += length;
      calibration.sequences.push_back(std::move(tokens));
    }
  }
  std::shared_ptr<const tensor::ModelWeights> source;
  model::Architecture arch;
  CalibrationData calibration;
  ThreadPool pool;
  Products products;
};

// What the whole model sees at the inputs of its first layer.
struct Seen {
  std::array<std::vector<float>, 4> absmax;
  std::vector<float> k_absmax;
  std::vector<float> out;  // stream after layer 0, last sequence
};
Seen whole_model(const Fixture& f, ThreadPool& pool) {
  Seen seen;
  model::Transformer::Options options{.bind = {.registry = f.products.registry(), .caps = f.products.caps()},
                                      .max_batch_tokens = 1031,
                                      .context = 1031};
  model::Transformer transformer = *model::Transformer::load(*f.source, f.arch, options, pool);
  model::AttentionCache::Options cache_options{
      .num_blocks = 65, .max_batch_tokens = 1031, .context = 1031, .caps = f.products.caps()};
  cache_options.format = *kvcache::parse_kv_format("f32", {}, kvcache::KvScaleRule::kCheckpoint);
  model::AttentionCache cache = *model::AttentionCache::make(f.arch, cache_options, pool.size());
  std::vector<int32_t> blocks(65);
  std::iota(blocks.begin(), blocks.end(), 0);
  const auto raise = [](std::vector<float>& into, const float* x, int64_t stride, int64_t m, int64_t k) {
    into.resize(static_cast<size_t>(k));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t c = 0; c < k; ++c) {
        auto& v = into[static_cast<size_t>(c)];
        v = std::max(v, std::abs(x[i * stride + c]));
      }
    }
  };
  model::Observer observer;
  observer.input = [&](int64_t layer, Site site, const float* x, int64_t m, int64_t k) {
    if (layer == 0) raise(seen.absmax[static_cast<size_t>(site)], x, k, m, k);
  };
  observer.keys = [&](int64_t layer, const float*, int64_t, const float* k, int64_t stride, int64_t m) {
    if (layer == 0) raise(seen.k_absmax, k, stride, m, f.arch.kv_size());
  };
  observer.output = [&](int64_t layer, const float* h, int64_t m) {
    if (layer == 0) seen.out.assign(h, h + m * f.arch.hidden);
  };
  for (const auto& sequence : f.calibration.sequences) {
    const model::SequenceSlice slice{.block_table = blocks, .count = static_cast<int64_t>(sequence.size())};
    EXPECT_TRUE(transformer.forward({sequence, {&slice, 1}, {}}, cache, nullptr, &observer).ok());
  }
  return seen;
}

TEST(BlockData, SeesWhatTheModelSees) {
  for (const char* name : {"models/T1", "models/T2"}) {
    TARE_NEEDS_FIXTURE(path, name);
    Fixture f(path);
    const Seen seen = whole_model(f, f.pool);
    Block block = *Block::load(*f.source, f.arch, 0);
    auto data = BlockData::start(*f.source, f.arch, f.calibration, {}, f.products);
    ASSERT_TRUE(data.ok()) << data.error().message();
    ASSERT_TRUE(data->open(block).ok());
    const BlockStatistics& now = **data->statistics(block);
    for (const Site site : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) {
      const auto& expected = seen.absmax[static_cast<size_t>(site)];
      ASSERT_EQ(now.at(site).absmax.size(), expected.size());
      EXPECT_EQ(now.at(site).tokens, f.calibration.tokens);
      EXPECT_EQ(now.at(site).zero_tokens, 0);
      // The stream is held in bf16.
      for (size_t c = 0; c < expected.size(); ++c) {
        EXPECT_NEAR(now.at(site).absmax[c], expected[c], 0.02f * expected[c] + 1e-3f);
      }
    }
    for (size_t c = 0; c < seen.k_absmax.size(); ++c) {
      EXPECT_NEAR(now.k_absmax[c], seen.k_absmax[c], 0.02f * seen.k_absmax[c] + 1e-3f);
    }
    const Gram& gram = **data->gram(block, Site::kDown);
    EXPECT_EQ(gram.tokens(), f.calibration.tokens);
    int64_t m = 0;
    const std::vector<float> x = *data->inputs(block, Site::kDown, f.calibration.tokens, &m);
    ASSERT_EQ(m, f.calibration.tokens);
    double sum = 0;
    for (int64_t t = 0; t < m; ++t)
      sum += static_cast<double>(x[static_cast<size_t>(t * gram.k())]) * x[static_cast<size_t>(t * gram.k() + 5)];
    EXPECT_NEAR(gram.at(0, 5), sum, 1e-4 * std::abs(sum) + 1e-6);
  }
}

TEST(BlockData, TrialsMeasureTheChange) {
  TARE_NEEDS_FIXTURE(path, "models/T2");
  Fixture f(path);
  Block block = *Block::load(*f.source, f.arch, 1);
  for (BlockMatrix& m : block.matrices) m.scheme.grid = {.bits = 4, .group_size = 32};
  auto data = BlockData::start(*f.source, f.arch, f.calibration, {}, f.products);
  ASSERT_TRUE(data->open(block).ok());
  for (const Half half : {Half::kAttention, Half::kMlp, Half::kBlock}) {
    EXPECT_EQ(*data->error(block, {.half = half}), 0);
    EXPECT_GT(*data->error(*rounded(block, {}, f.pool), {.half = half}), 1e-5);
  }
  // Rounding one half leaves the other as it is.
  const Site mlp[] = {Site::kGateUp, Site::kDown};
  const Block half = *rounded(block, mlp, f.pool);
  EXPECT_EQ(*data->error(half, {.half = Half::kAttention}), 0);
  EXPECT_GT(*data->error(half, {.half = Half::kMlp}), 1e-5);
  // Keys and values in 4 bits cost more than in 8; 8-bit activations cost something.
  const double kv4 = *data->error(block, {.half = Half::kAttention, .kv_bits = 4});
  const double kv8 = *data->error(block, {.half = Half::kAttention, .kv_bits = 8});
  EXPECT_GT(kv4, 10 * kv8);
  EXPECT_GT(kv8, 0);
  EXPECT_EQ(*data->error(block, {.round_activations = true}), 0);
  for (BlockMatrix& m : block.matrices) m.scheme.activation.type = tensor::ActivationType::kS8;
  const double a8 = *data->error(block, {.round_activations = true});
  EXPECT_GT(a8, 0);
  EXPECT_LT(a8, 1e-2);
  // Scaling up by 2 and the columns that read it by 1/2 changes nothing.
  RoleView up = block.view(Role::kUp);
  RoleView down = block.view(Role::kDown);
  for (int64_t i = 0; i < up.k; ++i) up.w[3 * up.k + i] *= 2;
  for (int64_t n = 0; n < down.n; ++n) down.w[n * down.k + 3] /= 2;
  if (up.bias) up.bias[3] *= 2;
  block.touch();
  EXPECT_LT(*data->error(block, {}), 1e-12);
  EXPECT_GT((*data->statistics(block))->at(Site::kDown).absmax[3], 0);
}

TEST(BlockData, RefusesDataItCannotRun) {
  TARE_NEEDS_FIXTURE(path, "models/T1");
  Fixture f(path);
  EXPECT_FALSE(BlockData::start(*f.source, f.arch, {}, {}, f.products).ok());
  f.calibration.sequences[0][3] = static_cast<int32_t>(f.arch.vocab_size);
  EXPECT_FALSE(BlockData::start(*f.source, f.arch, f.calibration, {}, f.products).ok());
}

TEST(TokenStore, MemoryAndFileHoldTheSame) {
  MemoryBudget tight(1000);
  TokenStore memory = *TokenStore::make(37, 19, "/tmp", nullptr);
  TokenStore file = *TokenStore::make(37, 19, "/tmp", &tight);
  EXPECT_FALSE(memory.in_file());
  EXPECT_TRUE(file.in_file());
  std::vector<float> rows(37 * 19), a(rows.size()), b(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) * 0.37f - 100;
  for (TokenStore* store : {&memory, &file}) {
    ASSERT_TRUE(store->write(20, 17, rows.data() + 20 * 19).ok());
    ASSERT_TRUE(store->write(0, 20, rows.data()).ok());
  }
  ASSERT_TRUE(memory.read(0, 37, a.data()).ok());
  TokenStore moved = std::move(file);
  ASSERT_TRUE(moved.read(0, 5, b.data()).ok());
  ASSERT_TRUE(moved.read(5, 32, b.data() + 5 * 19).ok());
  EXPECT_EQ(a, b);
  EXPECT_EQ(a[8], -97.0f);  // -97.04 to 8 bits
  EXPECT_FALSE(TokenStore::make(37, 19, "/no such folder", &tight).ok());
}

TEST(WithChanges, ChangesOnlyWhatIsNamed) {
  TARE_NEEDS_FIXTURE(path, "models/T2");
  Fixture f(path);
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto changed =
      *with_changes(f.source, {{name, [](const std::string&, std::vector<float>& v, int64_t, int64_t) -> Status {
                                  for (float& x : v) x *= 2;
                                  return {};
                                }}});
  EXPECT_EQ(changed->names(), f.source->names());
  const auto before = *tensor::to_f32(*f.source->load(name));
  const auto after = *tensor::to_f32(*changed->load(name));
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], 2 * before[i]);
  EXPECT_EQ(*tensor::to_f32(*changed->load(model::kEmbedding)), *tensor::to_f32(*f.source->load(model::kEmbedding)));
}

}  // namespace
}  // namespace tare::quantize
