#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention_rows.h"

namespace tare::kernels {
namespace {

// One sequence over f32 pages that hold what the test says.
struct SmallCase {
  AttentionProblem problem;
  std::vector<std::byte> memory;
  KvLayer layer;
  std::vector<int32_t> blocks;

  SmallCase(AttentionProblem p, int64_t tokens, const std::vector<float>& k, const std::vector<float>& v) : problem(p) {
    layer.kv_heads = p.kv_heads;
    layer.k = kv_page_layout(p.k, KvSide::kKey, p.head_dim, p.block_size);
    layer.v = kv_page_layout(p.v, KvSide::kValue, p.head_dim, p.block_size);
    layer.block_bytes = p.kv_heads * (layer.k.bytes + layer.v.bytes);
    const int64_t count = tokens / p.block_size + 1;
    for (int64_t i = count; i-- > 0;) blocks.push_back(static_cast<int32_t>(i));
    memory.resize(static_cast<size_t>(count * layer.block_bytes));
    layer.base = memory.data();
    ThreadPool pool(1);
    const KvAppend append{k.data(),     p.kv_heads * p.head_dim, v.data(), p.kv_heads * p.head_dim, tokens, 0,
                          blocks.data()};
    kAttentionReference.store(layer, {&append, 1}, pool);
  }

  std::vector<float> run(const std::vector<float>& q, int64_t count, int64_t position) {
    const int64_t width = problem.heads * problem.head_dim;
    std::vector<float> out(static_cast<size_t>(count * width));
    const AttentionSegment s{q.data(), width, count, position, blocks.data(), out.data(), width};
    ThreadPool pool(1);
    kAttentionReference.run(problem, layer, {&s, 1}, {}, pool);
    return out;
  }
};

TEST(AttentionReference, TwoKeysByHand) {
  // Scores ln 3 and 0 give weights 3/4 and 1/4.
  const AttentionProblem p{
      .heads = 1, .kv_heads = 1, .head_dim = 2, .scale = 0.5f, .k = {KvType::kF32}, .v = {KvType::kF32}};
  SmallCase c(p, 2, {2, 0, 0, 5}, {8, 4, 0, -4});
  const std::vector<float> out = c.run({9, 9, std::log(3.0f), 0}, 2, 0);
  EXPECT_FLOAT_EQ(out[0], 8);  // the first query sees only itself
  EXPECT_FLOAT_EQ(out[1], 4);
  EXPECT_FLOAT_EQ(out[2], 6);
  EXPECT_FLOAT_EQ(out[3], 2);
}

TEST(AttentionReference, HeadsOfAGroupShareKeysAndTheWindowIncludesTheQuery) {
  AttentionProblem p{
      .heads = 4, .kv_heads = 2, .head_dim = 1, .k = {KvType::kF32}, .v = {KvType::kF32}, .block_size = 1};
  SmallCase c(p, 3, {0, 0, 0, 0, 0, 0}, {1, 10, 2, 20, 4, 40});
  EXPECT_FLOAT_EQ(c.run({1, 1, 1, 1}, 1, 2)[1], 7.0f / 3);
  EXPECT_FLOAT_EQ(c.run({1, 1, 1, 1}, 1, 2)[2], 70.0f / 3);
  c.problem.window = 2;
  EXPECT_FLOAT_EQ(c.run({1, 1, 1, 1}, 1, 2)[0], 3);
  c.problem.window = 1;
  EXPECT_FLOAT_EQ(c.run({1, 1, 1, 1}, 1, 2)[3], 40);
}

TEST(AttentionReference, SoftCapBoundsScores) {
  // cap * tanh(score / cap): scores +-1e6 become +-2, weights sigmoid(4).
  const AttentionProblem p{
      .heads = 1, .kv_heads = 1, .head_dim = 1, .soft_cap = 2, .k = {KvType::kF32}, .v = {KvType::kF32}};
  SmallCase c(p, 2, {1e6, -1e6}, {1, 0});
  EXPECT_NEAR(c.run({1}, 1, 1)[0], 1 / (1 + std::exp(-4.0)), 1e-6);
}

}  // namespace
}  // namespace tare::kernels
