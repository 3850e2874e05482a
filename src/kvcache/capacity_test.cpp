#include "kvcache/capacity.h"

#include <gtest/gtest.h>

namespace tare::kvcache {
namespace {

CapacityRequest request_of(std::string_view dtype, int64_t head_dim) {
  PagedKvCacheOptions cache{.layers = 4, .kv_heads = 3, .head_dim = head_dim, .block_size = 16};
  cache.format = *parse_kv_format(dtype, {}, KvScaleRule::kCalculate);
  return {.cache = cache, .max_model_len = 1000, .trained_len = 8192, .max_num_seqs = 4};
}

TEST(Capacity, Int4HoldsThreeAndAHalfTimesTheTokensOfF16InTheSameBytes) {
  for (const int64_t head_dim : {64, 128}) {
    CapacityRequest f16 = request_of("f16", head_dim), int4 = request_of("int4", head_dim);
    f16.kv_cache_memory_bytes = int4.kv_cache_memory_bytes = 64 << 20;
    const Capacity a = *plan_capacity(f16), b = *plan_capacity(int4);
    EXPECT_GE(static_cast<double>(b.tokens()), 3.5 * static_cast<double>(a.tokens())) << head_dim;
    EXPECT_LE(a.kv_bytes, 64 << 20);
    EXPECT_LE(b.kv_bytes, 64 << 20);
    EXPECT_GT(b.kv_bytes + 16 * b.bytes_per_token, 64 << 20) << "no block more would fit";
  }
}

TEST(Capacity, WithoutABudgetAllSequencesFit) {
  const Capacity c = *plan_capacity(request_of("f16", 64));
  EXPECT_EQ(c.bytes_per_token, 4 * 3 * 256);
  EXPECT_EQ(c.num_blocks, 4 * 63);
  EXPECT_DOUBLE_EQ(c.concurrency(), 4.0);
  CapacityRequest small = request_of("f16", 64);
  small.default_bytes = 1 << 20;
  EXPECT_EQ(plan_capacity(small)->num_blocks, 63) << "one of full length at least";
}

TEST(Capacity, AutoFitsTheMemory) {
  CapacityRequest request = request_of("int8", 64);
  request.max_model_len = kFitMemory;
  request.available_bytes = 2 << 20;
  const Capacity c = *plan_capacity(request);
  EXPECT_EQ(c.bytes_per_token, 4 * 3 * 136);
  EXPECT_EQ(c.num_blocks, (2 << 20) / (16 * 4 * 3 * 136));
  EXPECT_EQ(c.max_model_len, c.tokens());
  request.available_bytes = int64_t{1} << 40;
  EXPECT_EQ(plan_capacity(request)->max_model_len, 8192);
  EXPECT_EQ(plan_capacity(request)->num_blocks, 4 * 512) << "not more than can be used";
}

TEST(Capacity, WhatDoesNotFitIsToldInNumbers) {
  CapacityRequest request = request_of("f32", 64);
  request.available_bytes = 1 << 20;
  const auto refused = plan_capacity(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kDoesNotFit);
  EXPECT_NE(refused.error().message().find("at most 160 tokens in 1048576 bytes, found 1000 tokens"), std::string::npos)
      << refused.error().message();
  request.available_bytes = 1000;
  EXPECT_EQ(plan_capacity(request).error().kind, ErrorKind::kDoesNotFit);
  request.available_bytes = 1 << 20;
  request.kv_cache_memory_bytes = 1 << 21;
  EXPECT_NE(plan_capacity(request).error().message().find("beside the weights"), std::string::npos);
}

}  // namespace
}  // namespace tare::kvcache
