#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/checked.h"

namespace tare::runtime {
namespace {

using kvcache::BlockManager;

std::vector<int32_t> iota(int32_t from, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(from + static_cast<int32_t>(i));
  return out;
}

struct Rig {
  explicit Rig(SchedulerOptions options, int64_t blocks = 8, int64_t block_size = 4)
      : manager({.num_blocks = blocks, .block_size = block_size}), scheduler(options, manager) {}

  BlockManager manager;
  Scheduler scheduler;

  // One step in which every due sequence gets `token`.
  StepPlan step(int32_t token = 1) {
    StepPlan plan = scheduler.plan();
    scheduler.computed(plan);
    for (const Chunk& chunk : plan.chunks) {
      if (chunk.last) scheduler.append(chunk.sequence, token);
    }
    return plan;
  }
};

int64_t count_of(const StepPlan& plan, SequenceKey key) {
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.sequence == key) return chunk.count;
  }
  return 0;
}

TEST(Scheduler, DecodesGoFirstAndPromptsTakeTheRest) {
  Rig rig({.max_num_seqs = 4, .max_batched_tokens = 8, .max_model_len = 32});
  const SequenceKey a = rig.scheduler.add({.tokens = iota(0, 4)});
  EXPECT_EQ(count_of(rig.step(), a), 4);
  const SequenceKey b = rig.scheduler.add({.tokens = iota(50, 13)});
  StepPlan plan = rig.step();
  EXPECT_EQ(plan.chunks[0].sequence, a);
  EXPECT_EQ(count_of(plan, a), 1);
  EXPECT_EQ(count_of(plan, b), 7);
  plan = rig.step();
  EXPECT_EQ(count_of(plan, b), 6);
  EXPECT_TRUE(plan.chunks[1].last);
  plan = rig.step();
  EXPECT_EQ(plan.decodes, 2);
}

TEST(Scheduler, AnAllowanceBoundsPromptsOnly) {
  Rig rig({.max_num_seqs = 4, .max_batched_tokens = 16, .max_model_len = 32});
  const SequenceKey a = rig.scheduler.add({.tokens = iota(0, 4)});
  rig.step();
  const SequenceKey b = rig.scheduler.add({.tokens = iota(50, 12)});
  const StepPlan plan = rig.scheduler.plan([](int64_t decodes) { return decodes == 1 ? 3 : 100; });
  EXPECT_EQ(count_of(plan, a), 1);
  EXPECT_EQ(count_of(plan, b), 3);
}

TEST(Scheduler, WithoutChunksAPromptWaitsForAStepThatHoldsIt) {
  Rig rig({.max_num_seqs = 4, .max_batched_tokens = 8, .max_model_len = 32, .chunked_prefill = false});
  rig.scheduler.add({.tokens = iota(0, 4)});
  const SequenceKey b = rig.scheduler.add({.tokens = iota(50, 7)});
  EXPECT_EQ(count_of(rig.step(), b), 0);
  EXPECT_EQ(count_of(rig.step(), b), 7);
}

TEST(Scheduler, TheYoungestIsPreemptedAndResumesFromTheCache) {
  Rig rig({.max_num_seqs = 4, .max_batched_tokens = 32, .max_model_len = 24}, 7);
  const SequenceKey a = rig.scheduler.add({.tokens = iota(0, 8)});
  const SequenceKey b = rig.scheduler.add({.tokens = iota(50, 12)});
  rig.step();  // a holds 2 blocks, b 3
  EXPECT_EQ(rig.scheduler.running(), 2);
  bool preempted = false;
  for (int i = 0; i < 12 && !preempted; ++i) {
    const StepPlan plan = rig.step();
    EXPECT_EQ(count_of(plan, a), 1) << "the oldest always advances";
    for (const SequenceKey key : plan.preempted) {
      EXPECT_EQ(key, b);
      preempted = true;
    }
  }
  ASSERT_TRUE(preempted);
  EXPECT_FALSE(rig.scheduler.admitted(b));
  rig.scheduler.finish(a);
  const StepPlan plan = rig.step();
  EXPECT_TRUE(rig.scheduler.admitted(b));
  // Whole blocks of what it had computed are still there.
  EXPECT_LT(plan.tokens(), static_cast<int64_t>(rig.scheduler.tokens(b).size()) - 4);
  rig.scheduler.finish(b);
  EXPECT_EQ(rig.manager.referenced(), 0);
}

TEST(Scheduler, ForksShareThePromptAndCopyOnWrite) {
  Rig rig({.max_num_seqs = 3, .max_batched_tokens = 32, .max_model_len = 24}, 8);
  const SequenceKey a = rig.scheduler.add({.tokens = iota(0, 6), .width = 3});
  const SequenceKey later = rig.scheduler.add({.tokens = iota(60, 2)});
  StepPlan plan = rig.scheduler.plan();
  EXPECT_EQ(plan.chunks.size(), 1u) << "the width counts as sequences";
  rig.scheduler.computed(plan);
  const SequenceKey b = rig.scheduler.fork(a);
  const SequenceKey c = rig.scheduler.fork(a);
  EXPECT_EQ(rig.manager.referenced(), 2);
  rig.scheduler.append(a, 1);
  rig.scheduler.append(b, 2);
  rig.scheduler.append(c, 3);
  plan = rig.step();
  EXPECT_EQ(plan.decodes, 3);
  EXPECT_EQ(plan.copies.size(), 2u);
  EXPECT_EQ(rig.manager.referenced(), 4);
  rig.scheduler.finish(b);
  rig.step();
  EXPECT_TRUE(rig.scheduler.admitted(later));
  for (const SequenceKey key : {a, c, later}) rig.scheduler.finish(key);
  EXPECT_EQ(rig.manager.referenced(), 0);
}

TEST(Scheduler, PriorityGoesFirstButNotForEver) {
  Rig rig({.max_num_seqs = 1,
           .max_batched_tokens = 32,
           .max_model_len = 24,
           .policy = SchedulingPolicy::kPriority,
           .aging_arrivals = 3});
  const SequenceKey low = rig.scheduler.add({.tokens = iota(0, 2), .priority = 1});
  std::vector<SequenceKey> served;
  for (int i = 0; i < 6; ++i) {
    const SequenceKey high = rig.scheduler.add({.tokens = iota(10 * i, 2), .priority = 0});
    const StepPlan plan = rig.step();
    ASSERT_EQ(plan.chunks.size(), 1u);
    served.push_back(plan.chunks[0].sequence);
    rig.scheduler.finish(served.back());
    (void)high;
  }
  EXPECT_NE(served[0], low);
  EXPECT_NE(served[1], low);
  EXPECT_NE(std::find(served.begin(), served.end(), low), served.end()) << "overtaken by three at most";
  EXPECT_NE(std::find(served.begin(), served.begin() + 4, low), served.begin() + 4);
}

TEST(Scheduler, RefusesWithNumbers) {
  Rig rig({.max_num_seqs = 2, .max_batched_tokens = 32, .max_model_len = 24});
  EXPECT_FALSE(rig.scheduler.admissible(0, 1).ok());
  EXPECT_TRUE(rig.scheduler.admissible(23, 2).ok());
  const Status longer = rig.scheduler.admissible(24, 1);
  EXPECT_NE(longer.error().message().find("less than 24 tokens, found 24"), std::string::npos);
  EXPECT_NE(rig.scheduler.admissible(3, 3).error().message().find("1 to 2"), std::string::npos);
  EXPECT_FALSE(check({.max_num_seqs = 8, .max_batched_tokens = 4, .max_model_len = 8}, 100).ok());
  const Status wide = check({.max_num_seqs = 1, .max_batched_tokens = 4, .max_model_len = 101}, 100);
  EXPECT_EQ(wide.error().kind, ErrorKind::kDoesNotFit);
  EXPECT_NE(wide.error().message().find("at most 100 tokens, found 101"), std::string::npos);
}

// Arrivals, chunks, forks, tokens, ends and cancellations at random, over a pool that is too small.
class RandomLoad {
 public:
  RandomLoad(uint32_t seed, SchedulingPolicy policy)
      : random_(seed), policy_(policy), manager_({.num_blocks = kBlocks, .block_size = kBlockSize}) {
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{.max_num_seqs = kSeqs,
                                                              .max_batched_tokens = kTokens,
                                                              .max_model_len = kBlocks * kBlockSize,
                                                              .policy = policy,
                                                              .aging_arrivals = 8},
                                             manager_);
  }

  int64_t events = 0;
  int64_t finished = 0, cancelled = 0, forks = 0, longest_wait = 0;
  BlockManager& manager() { return manager_; }
  Scheduler& scheduler() { return *scheduler_; }

  void run(int64_t count) {
    while (events < count && !::testing::Test::HasFailure()) {
      if (live_.size() < 40 && below(3) == 0) arrive();
      if (!live_.empty() && below(50) == 0) cancel();
      step();
    }
    while (!live_.empty() && !::testing::Test::HasFailure()) step();
  }

 private:
  static constexpr int64_t kBlocks = 24, kBlockSize = 4, kSeqs = 6, kTokens = 16;
  struct Live {
    int64_t prompt = 0;
    int64_t want = 0;  // tokens at the end
    int64_t width = 1;
    int64_t idle_steps = 0;
    std::vector<int32_t> tokens;
  };

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }

  void arrive() {
    Live one;
    // A few beginnings that many share.
    const auto shared = static_cast<int32_t>(below(3));
    const int64_t from_shared = below(20), own = 1 + below(12);
    for (int64_t i = 0; i < from_shared; ++i) one.tokens.push_back(1000 * shared + static_cast<int32_t>(i));
    for (int64_t i = 0; i < own; ++i) one.tokens.push_back(static_cast<int32_t>(below(5)));
    one.prompt = static_cast<int64_t>(one.tokens.size());
    one.want = std::min<int64_t>(one.prompt + 1 + below(40), kBlocks * kBlockSize);
    one.width = below(4) == 0 ? 1 + below(4) : 1;
    const bool scored = below(10) == 0;
    const SequenceKey key = scheduler_->add({.tokens = one.tokens,
                                             .width = one.width,
                                             .priority = below(3),
                                             .salt = below(4) == 0 ? "other" : "",
                                             .reuse_prefix = !scored,
                                             .largest_chunk = scored ? 3 : 0});
    live_.emplace(key, std::move(one));
    ++events;
  }

  void cancel() {
    auto at = live_.begin();
    std::advance(at, below(static_cast<int64_t>(live_.size())));
    scheduler_->finish(at->first);
    live_.erase(at);
    ++cancelled;
    ++events;
  }

  void token(SequenceKey key) {
    Live& one = live_.at(key);
    const auto id = static_cast<int32_t>(below(3));
    scheduler_->append(key, id);
    one.tokens.push_back(id);
    ++events;
    if (static_cast<int64_t>(one.tokens.size()) < one.want) return;
    scheduler_->finish(key);
    live_.erase(key);
    ++finished;
  }

  void step() {
    const StepPlan plan = scheduler_->plan([&](int64_t decodes) { return decodes > 0 ? 1 + below(kTokens) : kTokens; });
    ASSERT_LE(plan.tokens(), kTokens);
    ASSERT_LE(scheduler_->running(), kSeqs);
    ASSERT_LE(manager_.referenced(), kBlocks);
    if (!live_.empty()) {
      ASSERT_GT(plan.tokens(), 0) << "something always advances";
    }
    events += static_cast<int64_t>(plan.preempted.size());
    check_plan(plan);
    scheduler_->computed(plan);
    for (const Chunk& chunk : plan.chunks) {
      ++events;
      live_.at(chunk.sequence).idle_steps = -1;
      if (!chunk.last) continue;
      std::vector<SequenceKey> due = {chunk.sequence};
      for (; live_.at(chunk.sequence).width > 1; --live_.at(chunk.sequence).width) {
        const SequenceKey copy = scheduler_->fork(chunk.sequence);
        Live forked = live_.at(chunk.sequence);
        forked.width = 1;
        live_.emplace(copy, std::move(forked));
        due.push_back(copy);
        ++forks;
        ++events;
      }
      for (const SequenceKey key : due) token(key);
    }
    for (auto& [key, one] : live_) longest_wait = std::max(longest_wait, ++one.idle_steps);
  }

  void check_plan(const StepPlan& plan) {
    std::map<int32_t, int> writers;
    for (const Chunk& chunk : plan.chunks) {
      const Live& one = live_.at(chunk.sequence);
      const auto tokens = scheduler_->tokens(chunk.sequence);
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), one.tokens.begin(), one.tokens.end()));
      ASSERT_GE(chunk.count, 1);
      ASSERT_LE(chunk.first + chunk.count, static_cast<int64_t>(tokens.size()));
      const auto table = scheduler_->table(chunk.sequence);
      ASSERT_GE(static_cast<int64_t>(table.size()) * kBlockSize, chunk.first + chunk.count);
      // Nobody writes a block that another one writes in the same step.
      for (int64_t b = chunk.first / kBlockSize; b * kBlockSize < chunk.first + chunk.count; ++b) {
        ASSERT_EQ(writers[table[static_cast<size_t>(b)]]++, 0);
      }
    }
  }

  std::mt19937 random_;
  SchedulingPolicy policy_;
  BlockManager manager_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<SequenceKey, Live> live_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kEvents = 30000;
#else
constexpr int64_t kEvents = 1000000;
#endif

TEST(Scheduler, AMillionRandomEventsLeakNothingAndStarveNobody) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    RandomLoad load(3, policy);
    load.run(kEvents);
    EXPECT_GE(load.events, kEvents);
    EXPECT_TRUE(load.scheduler().idle());
    EXPECT_EQ(load.manager().referenced(), 0);
    EXPECT_EQ(load.manager().sequences(), 0);
    // A queue of at most 40 requests of at most 96 tokens and 4 outputs: whoever waits longer than all of them together
    // need has been passed over.
    EXPECT_LT(load.longest_wait, 2000);
    RecordProperty("longest_wait_steps", std::to_string(load.longest_wait));
    RecordProperty("preemptions", std::to_string(load.scheduler().counters().preemptions));
    const int64_t least = kEvents / 1000;
    EXPECT_GT(load.finished, least);
    EXPECT_GT(load.cancelled, least);
    EXPECT_GT(load.forks, least);
    EXPECT_GT(load.scheduler().counters().preemptions, least);
    EXPECT_GT(load.manager().counters().hit_tokens, least);
    EXPECT_GT(load.manager().counters().evictions, least);
    EXPECT_GT(load.manager().counters().copies, least);
  }
}

}  // namespace
}  // namespace tare::runtime
