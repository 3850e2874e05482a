#include "quantize/gptq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tare::quantize {
namespace {

std::vector<float> normal(int64_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = draw(random);
  return out;
}

struct Fixture {
  explicit Fixture(int threads = 2)
      : pool(threads), products(kernels::builtin_linear_kernels(), machine::capabilities(), pool) {}
  ThreadPool pool;
  Products products;
};

// Tokens whose channels depend on each other: x = z A.
std::vector<float> correlated(int64_t tokens, int64_t k, unsigned seed) {
  const int64_t rank = std::max<int64_t>(k / 8, 1);
  const std::vector<float> a = normal(rank * k, seed);
  const std::vector<float> z = normal(tokens * rank, seed + 1);
  std::vector<float> x = normal(tokens * k, seed + 2, 0.3f);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        x[static_cast<size_t>(t * k + i)] += z[static_cast<size_t>(t * rank + r)] * a[static_cast<size_t>(r * k + i)];
      }
    }
  }
  return x;
}

Gram gram_of(const std::vector<float>& x, int64_t k, Products& products) {
  Gram gram(k);
  EXPECT_TRUE(gram.add(x.data(), static_cast<int64_t>(x.size()) / k, products).ok());
  return gram;
}

double error_of(const Gram& gram, const std::vector<float>& w, const ChosenGrid& grid,
                const std::vector<uint8_t>& codes, Products& products) {
  std::vector<float> d(w.size());
  for (int64_t i = 0; i < static_cast<int64_t>(w.size()); ++i) {
    d[static_cast<size_t>(i)] =
        w[static_cast<size_t>(i)] - grid.decode(i / grid.k(), i % grid.k(), codes[static_cast<size_t>(i)]);
  }
  return *output_error(gram, d.data(), grid.n(), products);
}

std::vector<uint8_t> nearest(const ChosenGrid& grid, const std::vector<float>& w) {
  std::vector<uint8_t> codes(w.size());
  for (int64_t row = 0; row < grid.n(); ++row) {
    grid.encode_row(row, w.data() + row * grid.k(), codes.data() + row * grid.k());
  }
  return codes;
}

TEST(Gram, IsTheSumOfOuterProducts) {
  Fixture f;
  for (const int64_t k : {1, 96, 344, 577}) {
    const std::vector<float> x = normal(37 * k, 1);
    Gram gram(k);
    ASSERT_TRUE(gram.add(x.data(), 20, f.products).ok());
    ASSERT_TRUE(gram.add(x.data() + 20 * k, 17, f.products).ok());
    EXPECT_EQ(gram.tokens(), 37);
    for (int64_t i = 0; i < k; i += 31) {
      for (int64_t j = 0; j < k; j += 7) {
        double sum = 0;
        for (int64_t t = 0; t < 37; ++t)
          sum += static_cast<double>(x[static_cast<size_t>(t * k + i)]) *
                 static_cast<double>(x[static_cast<size_t>(t * k + j)]);
        EXPECT_NEAR(gram.at(i, j), sum, 1e-4) << k << " " << i << " " << j;
        EXPECT_EQ(gram.at(i, j), gram.at(j, i));
      }
    }
  }
}

TEST(Gram, FollowsItsInput) {
  Fixture f;
  const std::vector<float> x = normal(50 * 6, 2);
  Gram gram = gram_of(x, 6, f.products);
  const std::vector<float> factor = {1, 2, 0.5f, 3, 1, 4};
  const std::vector<int32_t> order = {5, 0, 3, 1, 2, 4};
  std::vector<float> changed(x.size());
  for (size_t t = 0; t < 50; ++t) {
    for (size_t i = 0; i < 6; ++i) {
      const auto from = static_cast<size_t>(order[i]);
      changed[t * 6 + i] = x[t * 6 + from] * factor[from];
    }
  }
  gram.scale(factor);
  gram.permute(order);
  const Gram expected = gram_of(changed, 6, f.products);
  for (int64_t i = 0; i < 36; ++i) EXPECT_NEAR(gram.data()[i], expected.data()[i], 1e-3);
}

TEST(InverseFactor, GivesTheInverse) {
  Fixture f;
  for (const int64_t k : {1, 5, 96, 128, 129, 300, 520}) {
    Gram gram = gram_of(correlated(4 * k, k, 3), k, f.products);
    std::vector<float> h(gram.data(), gram.data() + k * k);
    double mean = 0;
    for (int64_t i = 0; i < k; ++i) mean += static_cast<double>(gram.at(i, i)) / static_cast<double>(k);
    for (int64_t i = 0; i < k; ++i) h[static_cast<size_t>(i * k + i)] += static_cast<float>(0.01 * mean);
    const auto u = inverse_factor(h, k, f.products);
    ASSERT_TRUE(u.ok()) << k;
    // U H U^T = I when H^-1 = U^T U
    std::vector<double> uh(static_cast<size_t>(k * k));
    for (int64_t a = 0; a < k; a += 1 + k / 40) {
      for (int64_t j = 0; j < k; ++j) {
        double sum = 0;
        for (int64_t i = a; i < k; ++i)
          sum += static_cast<double>((*u)[static_cast<size_t>(a * k + i)]) *
                 static_cast<double>(h[static_cast<size_t>(i * k + j)]);
        uh[static_cast<size_t>(j)] = sum;
      }
      for (int64_t b = 0; b < k; b += 1 + k / 40) {
        double sum = 0;
        for (int64_t j = b; j < k; ++j)
          sum += uh[static_cast<size_t>(j)] * static_cast<double>((*u)[static_cast<size_t>(b * k + j)]);
        EXPECT_NEAR(sum, a == b ? 1 : 0, 2e-3) << k << " " << a << " " << b;
      }
      for (int64_t b = 0; b < a; ++b) EXPECT_EQ((*u)[static_cast<size_t>(a * k + b)], 0.0f);
    }
  }
  const std::vector<float> indefinite = {1, 2, 2, 1};
  EXPECT_EQ(inverse_factor(indefinite, 2, f.products).error().kind, ErrorKind::kNotFinite);
}

TEST(Gptq, BeatsRoundingOnEveryGrid) {
  Fixture f;
  for (const int64_t k : {96, 344, 576}) {
    const int64_t n = 24;
    const std::vector<float> w = normal(n * k, 5);
    const Gram gram = gram_of(correlated(2 * k, k, 6), k, f.products);
    for (const GridSpec& spec :
         {GridSpec{.bits = 2, .group_size = 32}, GridSpec{.bits = 3, .group_size = 128, .symmetric = false},
          GridSpec{.group_size = 128}, GridSpec{.bits = 8, .group_size = 0},
          GridSpec{.kind = GridKind::kMinimum, .group_size = 32}, GridSpec{.kind = GridKind::kProgressive},
          GridSpec{.kind = GridKind::kQoqChannel, .group_size = 0}}) {
      const ChosenGrid grid = *ChosenGrid::choose(spec, w.data(), n, k, f.pool);
      const double rtn = error_of(gram, w, grid, nearest(grid, w), f.products);
      for (const bool act_order : {true, false}) {
        const auto result = gptq(grid, w.data(), gram, {.act_order = act_order}, f.products);
        ASSERT_TRUE(result.ok());
        const double error = error_of(gram, w, grid, result->codes, f.products);
        // Strongly correlated inputs (an eighth of the directions): less than half the loss of rounding.
        EXPECT_LT(error, 0.5 * rtn) << describe(spec) << " k " << k << " act_order " << act_order;
        // Static groups: the tensor needs no map of columns.
        const auto made = grid.finish(result->codes, "test");
        ASSERT_TRUE(made.ok());
        EXPECT_FALSE((*made)->group_of_k);
        if (spec.kind == GridKind::kProgressive) {
          for (int64_t i = 0; i < n * k; ++i) {
            const int64_t group = (i % k) / 128 + (i / k) * grid.groups();
            const int32_t scaled = static_cast<int32_t>(made->code(i / k, i % k)) * (*made)->a->integer(group);
            ASSERT_LE(scaled, 255);
            ASSERT_GE(scaled + (*made)->b->integer(group), -119);
            ASSERT_LE(scaled + (*made)->b->integer(group), 126);
          }
        }
      }
    }
  }
}

// Degenerate inputs of the public reports: all finite, never worse than rounding, and said.
TEST(Gptq, SurvivesDegenerateInputs) {
  Fixture f;
  constexpr int64_t kN = 16, kK = 96;
  const std::vector<float> w = normal(kN * kK, 7);
  const ChosenGrid grid = *ChosenGrid::choose({.group_size = 32}, w.data(), kN, kK, f.pool);
  const std::vector<uint8_t> rtn = nearest(grid, w);
  const std::vector<float> base = correlated(300, kK, 8);
  const auto check = [&](const char* name, std::vector<float> x) {
    const Gram gram = gram_of(x, kK, f.products);
    const auto result = gptq(grid, w.data(), gram, {}, f.products);
    ASSERT_TRUE(result.ok()) << name;
    EXPECT_LE(error_of(gram, w, grid, result->codes, f.products),
              error_of(gram, w, grid, rtn, f.products) * 1.001 + 1e-6)
        << name;
    EXPECT_GE(result->damping, 0) << name;
  };
  std::vector<float> dead = base;
  for (size_t t = 0; t < 300; ++t) dead[t * kK + 5] = 0;
  check("dead channel", dead);
  const auto dead_result = gptq(grid, w.data(), gram_of(dead, kK, f.products), {}, f.products);
  EXPECT_EQ(dead_result->dead_columns, 1);
  for (int64_t row = 0; row < kN; ++row) {
    EXPECT_EQ(dead_result->codes[static_cast<size_t>(row * kK + 5)], rtn[static_cast<size_t>(row * kK + 5)]);
  }
  std::vector<float> twins = base;
  for (size_t t = 0; t < 300; ++t) twins[t * kK + 9] = twins[t * kK + 8];
  check("two equal channels", twins);
  check("ten tokens", std::vector<float>(base.begin(), base.begin() + 10 * kK));
  std::vector<float> huge = base;
  for (size_t t = 0; t < 300; ++t) huge[t * kK + 3] *= 1e4f;
  check("one huge channel", huge);

  const auto silent = gptq(grid, w.data(), gram_of(std::vector<float>(10 * kK), kK, f.products), {}, f.products);
  ASSERT_TRUE(silent.ok());
  EXPECT_LT(silent->damping, 0);
  EXPECT_EQ(silent->codes, rtn);
}

TEST(Gptq, SameBytesForAnyThreadCount) {
  constexpr int64_t kN = 33, kK = 344;
  const std::vector<float> w = normal(kN * kK, 9);
  const std::vector<float> x = correlated(200, kK, 10);
  std::vector<uint8_t> first;
  for (const int threads : {1, 2, 3}) {
    Fixture f(threads);
    const ChosenGrid grid = *ChosenGrid::choose({}, w.data(), kN, kK, f.pool);
    const auto result = gptq(grid, w.data(), gram_of(x, kK, f.products), {}, f.products);
    ASSERT_TRUE(result.ok());
    if (first.empty()) first = result->codes;
    EXPECT_EQ(first, result->codes) << threads;
  }
}

}  // namespace
}  // namespace tare::quantize
