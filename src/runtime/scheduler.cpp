#include "runtime/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/checked.h"

namespace tare::runtime {

namespace {

// The order of service: smaller goes first.
struct Rank {
  int64_t order = 0;
  SequenceKey key = 0;
  auto operator<=>(const Rank&) const = default;
};

constexpr int64_t kLargestPriority = int64_t{1} << 31;

}  // namespace

Result<SchedulingPolicy> parse_scheduling_policy(std::string_view name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  return invalid_input(
      "unknown scheduling policy",
      {.where = "--scheduling-policy", .expected = "fcfs or priority", .found = fmt::format("'{}'", name)});
}

Status check(const SchedulerOptions& o, int64_t capacity_tokens) {
  const auto refuse = [](const char* where, std::string expected, int64_t found) {
    return invalid_input("the scheduler cannot work like this",
                         {.where = where, .expected = std::move(expected), .found = fmt::format("{}", found)});
  };
  if (o.max_num_seqs < 1) return refuse("--max-num-seqs", "at least 1", o.max_num_seqs);
  if (o.max_batched_tokens < o.max_num_seqs) {
    return refuse("--max-num-batched-tokens", fmt::format("at least --max-num-seqs = {}", o.max_num_seqs),
                  o.max_batched_tokens);
  }
  if (o.max_model_len < 2) return refuse("--max-model-len", "at least 2 tokens", o.max_model_len);
  if (o.max_model_len > capacity_tokens) {
    return does_not_fit("the longest sequence does not fit the KV cache",
                        {.where = "--max-model-len",
                         .expected = fmt::format("at most {} tokens", capacity_tokens),
                         .found = fmt::format("{}", o.max_model_len),
                         .hint = "lower it or say auto, raise --kv-cache-memory-bytes or --memory, or use a smaller "
                                 "--kv-cache-dtype"});
  }
  return {};
}

struct Scheduler::Impl {
  struct Entry {
    Rank rank;
    NewSequence sequence;
    std::optional<kvcache::SequenceId> blocks;  // while it runs
    std::optional<int64_t> cached;

    int64_t size() const { return static_cast<int64_t>(sequence.tokens.size()); }
  };

  const SchedulerOptions& options;
  SchedulerCounters& counters;
  kvcache::BlockManager& blocks;
  std::unordered_map<SequenceKey, Entry> entries;
  std::set<Rank> waiting;
  std::set<Rank> running;
  int64_t width = 0;  // of the running ones
  int64_t arrivals = 0;
  SequenceKey next_key = 1;
  std::vector<SequenceKey> order;  // scratch of plan

  Entry& entry(SequenceKey key) {
    const auto found = entries.find(key);
    assert(found != entries.end());
    return found->second;
  }
  int64_t done(const Entry& e) const { return e.blocks ? blocks.computed(*e.blocks) : 0; }

  // Ranks are passed as values: one that is taken out of its set must not be read through the set.
  void preempt(Rank rank, StepPlan& plan) {
    Entry& e = entry(rank.key);
    ++counters.preemptions;
    counters.recomputed_tokens += done(e);
    blocks.release(*e.blocks);
    e.blocks.reset();
    running.erase(rank);
    waiting.insert(rank);
    width -= e.sequence.width;
    plan.preempted.push_back(rank.key);
    const auto planned = std::find_if(plan.chunks.begin(), plan.chunks.end(),
                                      [&](const Chunk& chunk) { return chunk.sequence == rank.key; });
    if (planned == plan.chunks.end()) return;
    (planned->count == 1 ? plan.decodes : plan.prompt_tokens) -= planned->count;
    plan.chunks.erase(planned);
  }

  // Room for `count` more tokens, from younger sequences if need be.
  bool make_room(Entry& e, int64_t count, StepPlan& plan) {
    while (!blocks.reserve(*e.blocks, done(e) + count, plan.copies)) {
      const Rank youngest = *running.rbegin();
      if (youngest == e.rank) return false;
      preempt(youngest, plan);
    }
    return true;
  }

  void schedule(const Entry& e, int64_t count, StepPlan& plan) {
    const int64_t first = done(e);
    plan.chunks.push_back({.sequence = e.rank.key, .first = first, .count = count, .last = first + count == e.size()});
    (count == 1 ? plan.decodes : plan.prompt_tokens) += count;
  }

  // Tokens of a prompt that may run now; 0 = not in this step.
  int64_t chunk_size(const Entry& e, int64_t pending, int64_t budget, const StepPlan& plan) const {
    int64_t count = std::min(pending, budget);
    if (e.sequence.largest_chunk > 0) count = std::min(count, e.sequence.largest_chunk);
    // Without chunking a prompt waits until it fits a step whole; one that never does has a step of its own.
    if (!options.chunked_prefill && count < pending && !plan.chunks.empty()) return 0;
    return std::max<int64_t>(count, 0);
  }

  bool admit(Rank rank, int64_t budget, StepPlan& plan);
};

Scheduler::Scheduler(SchedulerOptions options, kvcache::BlockManager& blocks)
    : options_(options), impl_(new Impl{.options = options_, .counters = counters_, .blocks = blocks}) {}
Scheduler::~Scheduler() = default;

Status Scheduler::admissible(int64_t prompt_tokens, int64_t width) const {
  if (prompt_tokens < 1) return invalid_input("prompt is empty", {.expected = "at least one token"});
  if (prompt_tokens >= options_.max_model_len) {
    return invalid_input("prompt is longer than the context",
                         {.expected = fmt::format("less than {} tokens", options_.max_model_len),
                          .found = fmt::format("{}", prompt_tokens)});
  }
  if (width < 1 || width > options_.max_num_seqs) {
    return invalid_input("number of outputs is out of range",
                         {.where = "n",
                          .expected = fmt::format("1 to {} (--max-num-seqs)", options_.max_num_seqs),
                          .found = fmt::format("{}", width)});
  }
  return {};
}

SequenceKey Scheduler::add(NewSequence sequence) {
  Impl& s = *impl_;
  assert(admissible(static_cast<int64_t>(sequence.tokens.size()), sequence.width).ok());
  const SequenceKey key = s.next_key++;
  int64_t order = s.arrivals++;
  if (options_.policy == SchedulingPolicy::kPriority) {
    order += std::clamp(sequence.priority, -kLargestPriority, kLargestPriority) * options_.aging_arrivals;
  }
  const Rank rank{order, key};
  s.entries.emplace(key, Impl::Entry{.rank = rank, .sequence = std::move(sequence)});
  s.waiting.insert(rank);
  return key;
}

bool Scheduler::Impl::admit(Rank rank, int64_t budget, StepPlan& plan) {
  Entry& e = entry(rank.key);
  if (width + e.sequence.width > options.max_num_seqs) return false;
  const std::span<const int32_t> prompt =
      e.sequence.reuse_prefix ? std::span<const int32_t>(e.sequence.tokens) : std::span<const int32_t>();
  const kvcache::PrefixProbe probe = blocks.probe(prompt, e.sequence.salt);
  const int64_t count = chunk_size(e, e.size() - probe.tokens, budget, plan);
  if (count == 0) return false;
  // Those that run will need a block each in time: admitting too early only means preempting soon.
  const int64_t reserve = running.empty() ? 0 : std::max<int64_t>(1, blocks.options().num_blocks / 100);
  const int64_t needed = ceil_div(e.size(), blocks.options().block_size) - probe.blocks;
  if (needed + probe.unreferenced + reserve > blocks.available()) return false;
  e.blocks = blocks.add(prompt, e.sequence.salt);
  if (!e.cached) e.cached = probe.tokens;
  const bool fits = blocks.reserve(*e.blocks, probe.tokens + count, plan.copies);
  assert(fits && "what was counted is there");
  (void)fits;
  waiting.erase(rank);
  running.insert(rank);
  width += e.sequence.width;
  schedule(e, count, plan);
  return true;
}

StepPlan Scheduler::plan(const Allowance& allowance) {
  Impl& s = *impl_;
  StepPlan plan;
  s.order.clear();
  for (const Rank& rank : s.running) s.order.push_back(rank.key);
  bool short_of_blocks = false;
  for (const bool decodes : {true, false}) {
    int64_t budget = options_.max_batched_tokens - plan.tokens();
    if (!decodes && allowance) budget = std::min(budget, allowance(plan.decodes));
    for (const SequenceKey key : s.order) {
      Impl::Entry& e = s.entry(key);
      if (!e.blocks) continue;  // preempted on the way
      const int64_t pending = e.size() - s.done(e);
      if ((pending == 1) != decodes) continue;
      const int64_t count = decodes ? 1 : s.chunk_size(e, pending, budget, plan);
      if (count == 0) continue;
      if (!s.make_room(e, count, plan)) {
        short_of_blocks = true;
        break;
      }
      s.schedule(e, count, plan);
      budget -= count;
    }
  }
  if (short_of_blocks || !plan.preempted.empty()) return plan;
  int64_t budget = options_.max_batched_tokens - plan.tokens();
  if (allowance) budget = std::min(budget, allowance(plan.decodes) - plan.prompt_tokens);
  while (!s.waiting.empty() && budget > 0) {
    const int64_t before = plan.tokens();
    if (!s.admit(*s.waiting.begin(), budget, plan)) break;
    budget -= plan.tokens() - before;
  }
  return plan;
}

void Scheduler::computed(const StepPlan& plan) {
  Impl& s = *impl_;
  for (const Chunk& chunk : plan.chunks) {
    Impl::Entry& e = s.entry(chunk.sequence);
    s.blocks.commit(
        *e.blocks,
        std::span(e.sequence.tokens).subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count)));
    if (options_.window > 0) s.blocks.forget_before(*e.blocks, chunk.first + chunk.count - options_.window + 1);
  }
}

SequenceKey Scheduler::fork(SequenceKey key) {
  Impl& s = *impl_;
  Impl::Entry& from = s.entry(key);
  assert(from.blocks && s.done(from) == from.size() && from.sequence.width > 1);
  const SequenceKey copy = s.next_key++;
  --from.sequence.width;
  Impl::Entry e{.rank = {from.rank.order, copy},
                .sequence = from.sequence,
                .blocks = s.blocks.fork(*from.blocks),
                .cached = from.cached};
  e.sequence.width = 1;
  e.sequence.largest_chunk = 0;
  e.sequence.reuse_prefix = true;
  s.running.insert(e.rank);
  s.entries.emplace(copy, std::move(e));
  return copy;
}

void Scheduler::append(SequenceKey key, int32_t token) {
  Impl::Entry& e = impl_->entry(key);
  assert(e.blocks && impl_->done(e) == e.size());
  e.sequence.tokens.push_back(token);
}

void Scheduler::finish(SequenceKey key) {
  Impl& s = *impl_;
  Impl::Entry& e = s.entry(key);
  if (e.blocks) {
    s.blocks.release(*e.blocks);
    s.running.erase(e.rank);
    s.width -= e.sequence.width;
  } else {
    s.waiting.erase(e.rank);
  }
  s.entries.erase(key);
}

std::span<const int32_t> Scheduler::tokens(SequenceKey key) const {
  return impl_->entry(key).sequence.tokens;
}
std::span<const int32_t> Scheduler::table(SequenceKey key) const {
  const Impl::Entry& e = impl_->entry(key);
  assert(e.blocks);
  return impl_->blocks.table(*e.blocks);
}
int64_t Scheduler::cached_tokens(SequenceKey key) const {
  return impl_->entry(key).cached.value_or(0);
}
bool Scheduler::admitted(SequenceKey key) const {
  return impl_->entry(key).blocks.has_value();
}
int64_t Scheduler::waiting() const {
  return static_cast<int64_t>(impl_->waiting.size());
}
int64_t Scheduler::running() const {
  return static_cast<int64_t>(impl_->running.size());
}

}  // namespace tare::runtime
