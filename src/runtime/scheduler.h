#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kvcache/block_manager.h"

namespace tare::runtime {

enum class SchedulingPolicy { kFcfs, kPriority };
/// "fcfs" or "priority". Errors: another name.
Result<SchedulingPolicy> parse_scheduling_policy(std::string_view name);

struct SchedulerOptions {
  int64_t max_num_seqs = 128;         // sequences that run at a time
  int64_t max_batched_tokens = 2048;  // of one step; not below max_num_seqs
  int64_t max_model_len = 0;          // prompt and output; at most what all blocks hold
  bool chunked_prefill = true;        // false: a prompt runs in one step whenever it fits one
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  /// kPriority: a sequence of priority p + 1 is overtaken by at most this many later ones of priority p, so that
  /// nothing waits for ever.
  int64_t aging_arrivals = 256;
  int64_t window = 0;  // keys that any layer looks back on; 0 = all. Blocks behind it are given back
};

/// Errors: contradictions, with the numbers.
Status check(const SchedulerOptions& options, int64_t capacity_tokens);

using SequenceKey = int64_t;

struct NewSequence {
  std::vector<int32_t> tokens;
  int64_t width = 1;  // sequences that it will become by fork()
  int64_t priority = 0;
  std::string salt;
  bool reuse_prefix = true;   // false: every position is computed
  int64_t largest_chunk = 0;  // tokens in a step; 0 = no limit of its own
};

/// Tokens of one sequence that a step computes.
struct Chunk {
  SequenceKey sequence = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool last = false;  // all its tokens are computed then: its next token is due
};

struct StepPlan {
  std::vector<Chunk> chunks;               // decodes first
  std::vector<kvcache::BlockCopy> copies;  // to be made in this order, before the forward pass
  std::vector<SequenceKey> preempted;
  int64_t decodes = 0;        // chunks with one token
  int64_t prompt_tokens = 0;  // tokens of the others
  int64_t tokens() const { return decodes + prompt_tokens; }
};

struct SchedulerCounters {
  int64_t preemptions = 0;
  int64_t recomputed_tokens = 0;  // given up by preemptions (some may be found in the cache again)
};

/// Decides what runs next, and owns the tokens of all sequences. Knows nothing of tensors, text or clocks.
///
/// Each step: first one token of every sequence that decodes, then prompt chunks of running sequences, then new
/// sequences, always in order of rank (arrival; with kPriority also priority). A sequence that lacks a block takes it
/// from the youngest running one, which is recomputed later, from what the cache still knows of it; a sequence never
/// loses its blocks to a younger one. So the oldest always advances, and every sequence becomes the oldest in time.
///
/// A sequence is admitted when all its present tokens fit, with a small reserve for those that run.
class Scheduler {
 public:
  /// `blocks` must outlive it. options: as check() accepts.
  Scheduler(SchedulerOptions options, kvcache::BlockManager& blocks);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Whether such a sequence can ever run. Errors with the numbers.
  Status admissible(int64_t prompt_tokens, int64_t width) const;
  /// `sequence` must be admissible.
  SequenceKey add(NewSequence sequence);

  /// Tokens of prompts that a step with this many decodes may take.
  using Allowance = std::function<int64_t(int64_t decodes)>;
  StepPlan plan(const Allowance& allowance = {});
  /// The forward pass of the plan is done. Then for each chunk with `last`: fork as often as wanted, and append or
  /// finish all of them, before the next plan.
  void computed(const StepPlan& plan);

  /// Another sequence on the same tokens, sharing all blocks. Only after computed(), when no token is pending.
  SequenceKey fork(SequenceKey key);
  void append(SequenceKey key, int32_t token);
  /// Ends a sequence at any time between steps, waiting or running.
  void finish(SequenceKey key);

  std::span<const int32_t> tokens(SequenceKey key) const;
  /// Block table of a running sequence. Valid until the next change.
  std::span<const int32_t> table(SequenceKey key) const;
  /// Tokens found in the cache when it was first admitted.
  int64_t cached_tokens(SequenceKey key) const;
  bool admitted(SequenceKey key) const;  // now running

  int64_t waiting() const;
  int64_t running() const;
  bool idle() const { return waiting() + running() == 0; }
  const SchedulerOptions& options() const { return options_; }
  const SchedulerCounters& counters() const { return counters_; }

 private:
  struct Impl;
  SchedulerOptions options_;
  SchedulerCounters counters_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tare::runtime
