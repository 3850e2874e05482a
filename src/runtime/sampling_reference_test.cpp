// The sampler against its definition, written down plainly: everything in full, nothing clever.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "runtime/sampling.h"

namespace tare::runtime {
namespace {

struct Case {
  SamplingParams params;
  std::vector<int32_t> prompt, output, ends;
  std::vector<float> logits;
};

std::vector<int32_t> some_ids(std::mt19937& random, int vocab, int most) {
  std::vector<int32_t> out;
  for (auto count = static_cast<int>(random() % static_cast<unsigned>(most + 1)); count > 0; --count) {
    out.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab)));
  }
  return out;
}

Case random_case(std::mt19937& random) {
  const auto coin = [&] { return random() % 2 == 0; };
  const auto unit = [&] { return static_cast<double>(random() % 1000) / 1000; };
  Case c;
  const int vocab = random() % 4 != 0 ? 13 : 1000;
  std::normal_distribution<float> normal(0, 3);
  for (int i = 0; i < vocab; ++i) c.logits.push_back(normal(random));
  // Ties are where orders differ.
  for (int i = 0; i < vocab / 4; ++i) c.logits[random() % c.logits.size()] = 1.5f;
  if (coin()) c.logits[random() % c.logits.size()] = -INFINITY;
  c.prompt = some_ids(random, vocab, 20);
  c.output = some_ids(random, vocab, 20);
  c.ends = some_ids(random, vocab, 2);
  SamplingParams& p = c.params;
  p.temperature = random() % 5 == 0 ? 0 : 0.2 + 2 * unit();
  if (coin()) p.top_k = static_cast<int64_t>(random() % 12);
  if (coin()) p.top_p = 0.05 + 0.95 * unit();
  if (coin()) p.min_p = 0.3 * unit();
  if (coin()) p.presence_penalty = 4 * unit() - 2;
  if (coin()) p.frequency_penalty = 4 * unit() - 2;
  if (coin()) p.repetition_penalty = 0.5 + unit();
  if (random() % 4 == 0) p.allowed_token_ids = some_ids(random, vocab, 9);
  if (coin()) {
    for (const int32_t id : some_ids(random, vocab, 4)) p.logit_bias[id] = static_cast<float>(20 * unit() - 10);
  }
  if (coin()) {
    for (int i = 0; i < 3; ++i) p.bad_words.push_back({static_cast<int32_t>(random() % static_cast<unsigned>(vocab))});
    if (!c.output.empty()) p.bad_words.push_back({c.output.back(), 3});
    p.bad_words.push_back({5, 4, 3});
  }
  p.max_tokens = 40;
  p.min_tokens = static_cast<int64_t>(random() % 30);
  p.stop_token_ids = some_ids(random, vocab, 2);
  p.ignore_eos = coin();
  p.seed = random();
  return c;
}

// Kept tokens with their probabilities, by id; empty when nothing is allowed.
std::map<int32_t, double> reference(const Case& c) {
  const SamplingParams& p = c.params;
  const auto vocab = static_cast<int32_t>(c.logits.size());
  std::map<int32_t, float> logit;
  for (int32_t id = 0; id < vocab; ++id) {
    float x = c.logits[static_cast<size_t>(id)];
    bool never = std::isinf(x);
    const auto in = [&](const std::vector<int32_t>& list) { return std::count(list.begin(), list.end(), id) > 0; };
    if (!p.allowed_token_ids.empty() && !in(p.allowed_token_ids)) never = true;
    for (const std::vector<int32_t>& word : p.bad_words) {
      std::vector<int32_t> would = c.output;
      would.push_back(id);
      if (would.size() >= word.size() && std::equal(word.rbegin(), word.rend(), would.rbegin())) never = true;
    }
    if (static_cast<int64_t>(c.output.size()) < p.min_tokens && ((!p.ignore_eos && in(c.ends)) || in(p.stop_token_ids)))
      never = true;
    if (never) continue;
    if (p.logit_bias.count(id)) x += p.logit_bias.at(id);
    const auto said = std::count(c.output.begin(), c.output.end(), id);
    const auto asked = std::count(c.prompt.begin(), c.prompt.end(), id);
    if (said + asked > 0) {
      const auto penalty = static_cast<float>(p.repetition_penalty);
      x = x > 0 ? x / penalty : x * penalty;
    }
    if (said > 0) x -= static_cast<float>(p.frequency_penalty * static_cast<double>(said) + p.presence_penalty);
    logit[id] = x;
  }
  if (logit.empty()) return {};
  float best = -INFINITY;
  for (const auto& [id, x] : logit) best = std::max(best, x);
  if (p.temperature == 0) {
    for (const auto& [id, x] : logit) {
      if (x == best) return {{id, 1.0}};
    }
  }
  std::vector<std::pair<double, int32_t>> order;  // weight, id
  for (const auto& [id, x] : logit) {
    const double weight = std::exp((static_cast<double>(x) - static_cast<double>(best)) / p.temperature);
    if (weight > 0 && weight >= p.min_p) order.emplace_back(weight, id);
  }
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  if (p.top_k > 0 && order.size() > static_cast<size_t>(p.top_k)) order.resize(static_cast<size_t>(p.top_k));
  if (p.top_p < 1) {
    long double total = 0, mass = 0;
    for (const auto& [weight, id] : order) total += weight;
    size_t kept = 0;
    while (kept < order.size() && mass < p.top_p * total) mass += order[kept++].first;
    order.resize(std::max<size_t>(kept, 1));
  }
  std::map<int32_t, double> out;
  double sum = 0;
  for (const auto& [weight, id] : order) sum += weight;
  for (const auto& [weight, id] : order) out[id] = weight / sum;
  return out;
}

TEST(SamplingReference, KeepsAndChoosesWhatTheDefinitionSays) {
  std::mt19937 random(17);
  int empty = 0, cut = 0;
  for (int i = 0; i < 1500; ++i) {
    const Case c = random_case(random);
    const std::map<int32_t, double> expected = reference(c);
    const SamplingHistory history{.prompt = c.prompt, .output = c.output, .end_ids = c.ends};
    std::vector<float> logits = c.logits;
    const auto chosen = sample(c.params, history, logits);
    if (expected.empty()) {
      ++empty;
      EXPECT_FALSE(chosen.ok());
      continue;
    }
    ASSERT_TRUE(chosen.ok()) << chosen.error().message();
    // `logits` are processed now.
    const std::vector<Candidate> kept = candidates(c.params, logits);
    ASSERT_EQ(kept.size(), expected.size()) << "case " << i;
    cut += kept.size() < c.logits.size();
    double total = 0;
    for (const Candidate& one : kept) total += one.weight;
    auto want = expected.begin();
    // The draw walks the candidates by id.
    const double point = uniform(c.params.seed, c.output.size());
    double below = 0;
    std::optional<int32_t> drawn;
    for (const Candidate& one : kept) {
      ASSERT_EQ(one.id, want->first) << "case " << i;
      ASSERT_NEAR(one.weight / total, want->second, 1e-12);
      below += want->second;
      if (!drawn && point < below) drawn = one.id;
      ++want;
    }
    EXPECT_EQ(chosen->id, drawn.value_or(kept.back().id)) << "case " << i;
  }
  EXPECT_GT(cut, 500);
  EXPECT_GT(empty, 0);
}

TEST(SamplingReference, OutputsOfOneSeedAreIndependent) {
  // Pairs of draws of two outputs fall evenly into a 4 x 4 table: chi-square with 15 degrees of freedom.
  std::vector<int> table(16, 0);
  constexpr int kDraws = 16000;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    const auto a = static_cast<int>(4 * uniform(output_seed(seed, 1), 0));
    const auto b = static_cast<int>(4 * uniform(output_seed(seed, 2), 0));
    ++table[static_cast<size_t>(4 * a + b)];
  }
  double statistic = 0;
  for (const int count : table) statistic += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(statistic, 37.7);  // 99.9 %
  EXPECT_EQ(output_seed(5, 0), 5u);
}

TEST(SamplingReference, ScoresAreLogProbabilities) {
  std::vector<float> logits = {1, 3, 2, 3};
  const Sample s = *score(logits, 0, 3);
  const double norm = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  EXPECT_NEAR(s.logprob, 1 - norm, 1e-12);
  ASSERT_EQ(s.top.size(), 3u);
  EXPECT_EQ(s.top[0].id, 1);
  EXPECT_EQ(s.top[1].id, 3);
  EXPECT_EQ(s.top[2].id, 2);
  logits[2] = NAN;
  EXPECT_EQ(score(logits, 0, 1).error().kind, ErrorKind::kNotFinite);
}

}  // namespace
}  // namespace tare::runtime
