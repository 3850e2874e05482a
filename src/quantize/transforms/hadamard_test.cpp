#include "quantize/transforms/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tare::quantize {
namespace {

TEST(Paley, RowsAreOrthogonal) {
  // The orders of common models' sizes; 52 is over GF(25), 28 over GF(27), 344 over GF(343), 124 over GF(61).
  for (const int64_t order :
       {1, 4, 8, 12, 20, 24, 28, 36, 44, 52, 60, 68, 72, 76, 84, 104, 108, 124, 140, 148, 312, 344, 924}) {
    const auto h = paley_matrix(order);
    ASSERT_TRUE(h.ok()) << order << ": " << h.error().message();
    const int64_t step = order > 200 ? 37 : 1;  // all pairs of the small ones
    for (int64_t i = 0; i < order; ++i) {
      for (int64_t j = i % step; j <= i; j += step) {
        int64_t sum = 0;
        for (int64_t c = 0; c < order; ++c) {
          const int a = (*h)[static_cast<size_t>(i * order + c)];
          ASSERT_EQ(std::abs(a), 1) << order;
          sum += a * (*h)[static_cast<size_t>(j * order + c)];
        }
        ASSERT_EQ(sum, i == j ? order : 0) << order << " rows " << i << " " << j;
      }
    }
  }
}

TEST(Paley, OrdersWithoutConstructionAreRefusedByName) {
  for (const int64_t order : {2, 3, 6, 92, 116, 156, 172, 428, 1031}) {
    const auto h = paley_matrix(order);
    ASSERT_FALSE(h.ok()) << order;
    EXPECT_NE(h.error().message().find(std::to_string(order)), std::string::npos);
  }
}

struct Split {
  int64_t n;
  int64_t outer;
};

TEST(HadamardTransform, SplitsTheSizesOfModels) {
  for (const Split s :
       {Split{64, 1}, {80, 20},    {96, 12},     {344, 344},   {576, 36},    {896, 28},   {960, 60},
        {1536, 12},   {2048, 1},   {2560, 20},   {3072, 12},   {3584, 28},   {4864, 76},  {5120, 20},
        {5632, 44},   {8960, 140}, {11008, 344}, {13824, 108}, {18944, 148}, {28672, 28}, {29568, 924}}) {
    const auto q = HadamardTransform::make(s.n);
    ASSERT_TRUE(q.ok()) << s.n;
    EXPECT_EQ(q->outer(), s.outer) << s.n;
  }
  for (const int64_t n : {0, -4, 6, 97, 13696, 10}) {
    const auto q = HadamardTransform::make(n);
    ASSERT_FALSE(q.ok()) << n;
    EXPECT_NE(q.error().message().find(std::to_string(n)), std::string::npos);
  }
}

// Q by its definition.
std::vector<double> dense(int64_t n, int64_t outer) {
  const std::vector<int8_t> h = *paley_matrix(outer);
  const int64_t inner = n / outer;
  std::vector<double> q(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t common = (i % inner) & (j % inner);
      const double sylvester = (__builtin_popcountll(static_cast<uint64_t>(common)) & 1) != 0 ? -1 : 1;
      // H_k^T [a, b] = H_k [b, a]
      q[static_cast<size_t>(i * n + j)] =
          h[static_cast<size_t>(j / inner * outer + i / inner)] * sylvester / std::sqrt(static_cast<double>(n));
    }
  }
  return q;
}

TEST(HadamardTransform, IsTheDenseProduct) {
  std::mt19937 random(1);
  std::normal_distribution<double> draw;
  for (const int64_t n : {1, 2, 16, 96, 80, 344, 576}) {
    const HadamardTransform transform = *HadamardTransform::make(n);
    const std::vector<double> q = dense(n, transform.outer());
    std::vector<double> x(static_cast<size_t>(n));
    for (double& v : x) v = draw(random);
    std::vector<double> y = x;
    transform.apply(y.data());
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += x[static_cast<size_t>(i)] * q[static_cast<size_t>(i * n + j)];
      EXPECT_NEAR(y[static_cast<size_t>(j)], sum, 1e-12) << n;
    }
    transform.apply_transposed(y.data());
    for (int64_t j = 0; j < n; ++j) EXPECT_NEAR(y[static_cast<size_t>(j)], x[static_cast<size_t>(j)], 1e-12) << n;
  }
}

TEST(HadamardTransform, SignsComeFromTheSeed) {
  const HadamardTransform a = *HadamardTransform::make(96, 7), b = *HadamardTransform::make(96, 7),
                          c = *HadamardTransform::make(96, 8);
  std::vector<double> x(96, 1.0), y = x, z = x;
  a.apply(x.data());
  b.apply(y.data());
  c.apply(z.data());
  EXPECT_EQ(x, y);
  EXPECT_NE(x, z);
  a.apply_transposed(x.data());
  for (const double v : x) EXPECT_NEAR(v, 1, 1e-12);
}

// (x Q) (W Q)^T = x W^T, with Q on rows; (Q^T W) for what writes; one-headed and by heads.
TEST(HadamardTransform, RowsAndColumnsMeet) {
  ThreadPool pool(2);
  std::mt19937 random(2);
  std::normal_distribution<float> draw;
  const int64_t n = 96;
  const int64_t rows = 3 * n;
  const HadamardTransform transform = *HadamardTransform::make(n, 3);
  std::vector<float> w(static_cast<size_t>(rows * 19));
  for (float& v : w) v = draw(random);
  std::vector<float> columns = w;
  transform.apply_to_columns(columns.data(), rows, 19, pool);
  // The transpose's rows must be the same numbers.
  std::vector<float> transposed(w.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < 19; ++j) transposed[static_cast<size_t>(j * rows + i)] = w[static_cast<size_t>(i * 19 + j)];
  }
  transform.apply_to_rows(transposed.data(), 19, rows, pool);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < 19; ++j) {
      EXPECT_EQ(columns[static_cast<size_t>(i * 19 + j)], transposed[static_cast<size_t>(j * rows + i)]);
    }
  }
}

}  // namespace
}  // namespace tare::quantize
