#include "runtime/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tare::runtime {
namespace {

std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

int32_t choose(SamplingParams params, std::vector<float> logits, SamplingHistory history = {}) {
  return sample(params, history, logits)->id;
}

// Frequencies of many draws against given probabilities: the chi-square statistic with its 99.9 % quantile.
double chi_square(const SamplingParams& params, const std::vector<float>& logits, const std::vector<double>& expected) {
  constexpr int kDraws = 20000;
  std::vector<int> counts(expected.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    SamplingParams one = params;
    one.seed = static_cast<uint64_t>(i);
    ++counts[static_cast<size_t>(choose(one, logits))];
  }
  double statistic = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double mean = expected[i] * kDraws;
    if (mean == 0) {
      EXPECT_EQ(counts[i], 0) << i;
    } else {
      statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
  }
  return statistic;
}

TEST(Sampling, GreedyTakesTheLowestIdOnTies) {
  EXPECT_EQ(choose({.temperature = 0}, {1, 3, 3, 2}), 1);
}

TEST(Sampling, DrawsFollowTheDistribution) {
  const auto logits = logits_of({0.5, 0.25, 0.125, 0.125});
  EXPECT_LT(chi_square({}, logits, {0.5, 0.25, 0.125, 0.125}), 16.27);  // 3 degrees of freedom
  // Temperature 0.5 squares the ratios: 16 : 4 : 1 : 1.
  EXPECT_LT(chi_square({.temperature = 0.5}, logits, {16.0 / 22, 4.0 / 22, 1.0 / 22, 1.0 / 22}), 16.27);
  EXPECT_LT(chi_square({.top_k = 2}, logits, {2.0 / 3, 1.0 / 3, 0, 0}), 10.83);
  // 0.5 alone does not reach 0.6, with 0.25 it does.
  EXPECT_LT(chi_square({.top_p = 0.6}, logits, {2.0 / 3, 1.0 / 3, 0, 0}), 10.83);
  // min-p 0.3 of the best (0.5) keeps what is at least 0.15.
  EXPECT_LT(chi_square({.min_p = 0.3}, logits, {2.0 / 3, 1.0 / 3, 0, 0}), 10.83);
  // A wrong expectation must be noticed.
  EXPECT_GT(chi_square({}, logits, {0.4, 0.35, 0.125, 0.125}), 16.27);
}

TEST(Sampling, TheDrawDependsOnSeedAndStepOnly) {
  const auto logits = logits_of({0.4, 0.3, 0.3});
  const std::vector<int32_t> output = {0, 1};
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(choose({.seed = seed}, logits, {.output = output}), choose({.seed = seed}, logits, {.output = output}));
  }
}

TEST(Sampling, MasksAndPenalties) {
  const std::vector<float> logits = {5, 4, 3, 2};
  EXPECT_EQ(choose({.temperature = 0, .allowed_token_ids = {2, 3}}, logits), 2);
  EXPECT_EQ(choose({.temperature = 0, .logit_bias = {{3, 10.0f}}}, logits), 3);
  const std::vector<int32_t> output = {7, 0};
  EXPECT_EQ(choose({.temperature = 0, .bad_words = {{7, 0}}}, logits, {.output = std::span(output).first(1)}), 1);
  EXPECT_EQ(choose({.temperature = 0, .bad_words = {{7, 0}}}, logits), 0);
  const std::vector<int32_t> zeros = {0, 0};
  EXPECT_EQ(choose({.temperature = 0, .presence_penalty = 1.5}, logits, {.output = zeros}), 1);
  EXPECT_EQ(choose({.temperature = 0, .frequency_penalty = 0.6}, logits, {.output = zeros}), 1);
  EXPECT_EQ(choose({.temperature = 0, .presence_penalty = 0.5}, logits, {.output = zeros}), 0);
  EXPECT_EQ(choose({.temperature = 0, .repetition_penalty = 2}, logits, {.prompt = zeros}), 1);
  EXPECT_EQ(choose({.temperature = 0, .presence_penalty = 2}, logits, {.prompt = zeros}),
            0);  // the prompt does not count
  const std::vector<int32_t> ends = {0};
  EXPECT_EQ(choose({.temperature = 0, .min_tokens = 1}, logits, {.end_ids = ends}), 1);
  EXPECT_EQ(choose({.temperature = 0, .min_tokens = 1, .ignore_eos = true}, logits, {.end_ids = ends}), 0);
}

TEST(Sampling, LogprobsAreOfTheRawDistribution) {
  std::vector<float> logits = logits_of({0.5, 0.3, 0.2});
  const Sample s = *sample({.temperature = 0, .logit_bias = {{2, 5.0f}}, .logprobs = 2}, {}, logits);
  EXPECT_EQ(s.id, 2);
  EXPECT_NEAR(s.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(s.top.size(), 2u);
  EXPECT_EQ(s.top[0].id, 0);
  EXPECT_NEAR(s.top[1].logprob, std::log(0.3), 1e-6);
}

TEST(Sampling, NonFiniteLogitsEndTheRequestByName) {
  std::vector<float> nan = {0, std::nanf(""), 0};
  EXPECT_EQ(sample({}, {}, nan).error().kind, ErrorKind::kNotFinite);
  EXPECT_NE(sample({}, {}, nan).error().message().find("token id 1"), std::string::npos);
  std::vector<float> inf = {0, std::numeric_limits<float>::infinity()};
  EXPECT_FALSE(sample({}, {}, inf).ok());
  std::vector<float> fine = {0, 1};
  EXPECT_FALSE(sample({.allowed_token_ids = {0}, .min_tokens = 1, .stop_token_ids = {0}}, {}, fine).ok());
}

TEST(Sampling, RangesAreChecked) {
  EXPECT_TRUE(check({}, 10).ok());
  for (const SamplingParams& bad :
       {SamplingParams{.temperature = -1}, SamplingParams{.temperature = std::nan("")}, SamplingParams{.top_k = -2},
        SamplingParams{.top_p = 0}, SamplingParams{.top_p = 1.5}, SamplingParams{.min_p = 2},
        SamplingParams{.presence_penalty = 3}, SamplingParams{.repetition_penalty = 0},
        SamplingParams{.logit_bias = {{10, 1.0f}}}, SamplingParams{.allowed_token_ids = {-1}},
        SamplingParams{.bad_words = {{}}}, SamplingParams{.min_tokens = 17}, SamplingParams{.stop = {""}}}) {
    EXPECT_FALSE(check(bad, 10).ok());
  }
}

}  // namespace
}  // namespace tare::runtime
