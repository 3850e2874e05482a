#include "kvcache/paged_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace tare::kvcache {
namespace {

using kernels::KvForm;
using kernels::KvType;

const std::vector<KvForm> kAllForms = {{KvType::kF32},        {KvType::kF16},  {KvType::kBF16},
                                       {KvType::kE4M3},       {KvType::kE5M2}, {KvType::kE4M3, true},
                                       {KvType::kE5M2, true}, {KvType::kInt8}, {KvType::kInt4}};

const kernels::AttentionKernel& reference() {
  static const auto registry = kernels::builtin_attention_kernels();
  return *registry.back();
}

PagedKvCache make_cache(KvForm k, KvForm v, int64_t head_dim, int64_t block_size, int64_t blocks,
                        int64_t kv_heads = 2) {
  PagedKvCacheOptions options{.layers = 2,
                              .kv_heads = kv_heads,
                              .head_dim = head_dim,
                              .block_size = block_size,
                              .num_blocks = blocks,
                              .format = {k, v},
                              .scales = {{{0.5f}, {0.25f}}, {{0.5f}, {0.25f}}}};
  auto cache = PagedKvCache::make(std::move(options));
  EXPECT_TRUE(cache.ok()) << cache.error().message();
  return std::move(cache).value();
}

TEST(KvFormat, BytesPerTokenIsTheDocumentedFormula) {
  const auto bytes = [](KvForm form, int64_t d) { return KvFormat{form, form}.bytes_per_token(d); };
  EXPECT_EQ(bytes({KvType::kF16}, 128), 512);
  EXPECT_EQ(bytes({KvType::kInt4}, 128), 136);
  EXPECT_EQ(bytes({KvType::kInt4}, 64), 72);
  EXPECT_EQ(bytes({KvType::kInt8}, 128), 264);
  EXPECT_EQ(bytes({KvType::kInt8}, 20), 2 * (24 + 4));
  EXPECT_EQ(bytes({KvType::kE4M3}, 64), 128);
  EXPECT_EQ(bytes({KvType::kE4M3, true}, 64), 132);
  EXPECT_EQ(bytes({KvType::kF32}, 80), 640);
  EXPECT_GE(512.0 / 136, 3.5);
  EXPECT_GE(256.0 / 72, 3.5);
}

TEST(KvFormat, ParsesTheFlag) {
  const KvFormat automatic{{KvType::kBF16}, {KvType::kBF16}};
  const auto text = [&](std::string_view flag, KvScaleRule rule) {
    const auto parsed = parse_kv_format(flag, automatic, rule);
    return parsed.ok() ? describe(*parsed) : parsed.error().message();
  };
  EXPECT_EQ(text("auto", KvScaleRule::kCheckpoint), "bf16");
  EXPECT_EQ(text("int8", KvScaleRule::kCheckpoint), "int8");
  EXPECT_EQ(text("int8,int4", KvScaleRule::kCheckpoint), "int8,int4");
  EXPECT_EQ(text("auto,int4", KvScaleRule::kCheckpoint), "bf16,int4");
  EXPECT_EQ(text("fp8", KvScaleRule::kCheckpoint), "fp8_e4m3");
  EXPECT_EQ(text("fp8_e5m2", KvScaleRule::kCalculate), "fp8_e5m2+calculate");
  for (const std::string_view wrong : {"", "int3", "int8,", "int8,int4,int4", "INT8", ",int8"}) {
    EXPECT_FALSE(parse_kv_format(wrong, automatic, KvScaleRule::kCheckpoint).ok()) << wrong;
  }
}

TEST(PagedCache, AppendInAnyChunksGivesTheSameBytes) {
  ThreadPool pool(1);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int64_t kTokens = 77;
  for (const KvForm& form : kAllForms) {
    for (const int64_t d : {20, 64, 80, 128}) {
      for (const int64_t block_size : {1, 4, 16, 32}) {
        const int64_t blocks = kTokens / block_size + 1;
        std::vector<int32_t> table;
        for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(blocks - 1 - b));
        std::vector<float> k(static_cast<size_t>(kTokens * 2 * d));
        std::vector<float> v(k.size());
        for (float& x : k) x = 3 * normal(random) + 1;
        for (float& x : v) x = normal(random);
        PagedKvCache bulk = make_cache(form, form, d, block_size, blocks);
        PagedKvCache single = make_cache(form, form, d, block_size, blocks);
        for (int64_t layer = 0; layer < 2; ++layer) {
          bulk.append(reference(), layer, table, 0, kTokens, k.data(), v.data(), pool);
          for (int64_t t = 0; t < kTokens; ++t) {
            single.append(reference(), layer, table, t, 1, k.data() + t * 2 * d, v.data() + t * 2 * d, pool);
          }
        }
        EXPECT_EQ(std::memcmp(bulk.layer(0).base, single.layer(0).base, static_cast<size_t>(bulk.total_bytes())), 0)
            << kernels::kv_type_name(form.type) << " d " << d << " block " << block_size;
      }
    }
  }
}

}  // namespace
}  // namespace tare::kvcache
