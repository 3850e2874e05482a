#include "eval/weight_histogram.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tare::eval {
namespace {

// By hand: two rows of four, one number of 8 among ones.
TEST(WeightHistogram, NumbersOfASmallMatrix) {
  const auto h = weight_histogram(tensor::Tensor::from_f32({2, 4}, {1, -1, 1, -1, 8, 1, -1, 1}));
  ASSERT_TRUE(h.ok()) << h.error().message();
  EXPECT_DOUBLE_EQ(h->amax, 8);
  EXPECT_DOUBLE_EQ(h->rms, std::sqrt(71.0 / 8));
  EXPECT_DOUBLE_EQ(h->outlier_ratio, 8 / std::sqrt(71.0 / 8));
  EXPECT_EQ(h->bins[60 + 60], 1);
  // 4 bits over the tensor: steps of 16 / 15; over channels: 2 / 15 and 16 / 15.
  const GranularityBound& tensor = h->bounds[0];
  EXPECT_EQ(tensor.name, "tensor");
  EXPECT_DOUBLE_EQ(tensor.max_error, 8.0 / 15);
  EXPECT_NEAR(tensor.relative_rms, 16.0 / 15 / std::sqrt(12.0) / h->rms, 1e-12);
  const GranularityBound& channel = h->bounds[1];
  EXPECT_EQ(channel.name, "channel");
  EXPECT_NEAR(channel.relative_rms, std::sqrt((4.0 / 225 + 256.0 / 225) / 2 / 12) / h->rms, 1e-12);
  EXPECT_DOUBLE_EQ(channel.bpw, 4 + 16.0 * 2 / 8);
}

TEST(WeightHistogram, OutliersAskForFinerScales) {
  std::vector<float> w(64 * 1031);
  for (size_t i = 0; i < w.size(); ++i) w[i] = std::sin(static_cast<float>(i) * 0.7f) * 0.1f;
  const auto smooth = weight_histogram(tensor::Tensor::from_f32({64, 1031}, w));
  w[5] = 30;
  const auto spiked = weight_histogram(tensor::Tensor::from_f32({64, 1031}, w));
  ASSERT_TRUE(smooth.ok() && spiked.ok());
  EXPECT_EQ(smooth->suggestion, "4 bits, tensor");
  EXPECT_NE(spiked->suggestion, "4 bits, tensor");
  EXPECT_GT(spiked->outlier_ratio, 100);
  EXPECT_GT(spiked->worst_column, 10);
  const std::string svg = histogram_svg("a<b", *spiked);
  EXPECT_EQ(svg.find("<svg"), 0u);
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  EXPECT_EQ(svg.find("href"), std::string::npos);
  EXPECT_FALSE(weight_histogram(tensor::Tensor::from_f32({3}, {1, 2, 3})).ok());
}

}  // namespace
}  // namespace tare::eval
