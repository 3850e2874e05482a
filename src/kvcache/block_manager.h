#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::kvcache {

struct BlockManagerOptions {
  int64_t num_blocks = 0;
  int64_t block_size = 16;
  bool prefix_caching = true;
  std::string model;      // whatever tells two models apart (a hash of the weights, LoRA included)
  std::string kv_format;  // describe(KvFormat), skipped layers included
  uint64_t hash_seed = 0;
};

/// Blocks that `budget_bytes` hold. Errors: not one fits (does not fit, with the numbers).
Result<int64_t> blocks_for_budget(int64_t budget_bytes, int64_t block_bytes);

using SequenceId = int64_t;

/// A block whose bytes have to be copied before the next step writes (PagedKvCache::copy_block).
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

/// What `add` would find.
struct PrefixProbe {
  int64_t tokens = 0;
  int64_t blocks = 0;
  int64_t unreferenced = 0;  // of the blocks: they count as available now
};

struct BlockCounters {
  int64_t queried_tokens = 0;  // prompt tokens looked up
  int64_t hit_tokens = 0;      // of them found in the cache
  int64_t evictions = 0;
  int64_t copies = 0;  // copies on write
  int64_t merges = 0;  // full blocks given up for an equal one
};

/// Who owns which block: block tables, reference counts, copy on write, and reuse of prefixes that were computed
/// before.
///
/// A full block of computed tokens can be found again by (all tokens before it, its own tokens, model, KV format,
/// salt): each is registered under its predecessor and its tokens, and a hit compares both, so that a collision of
/// hashes is no hit. Blocks that nobody references keep their contents until room is needed; then the one unused for
/// longest goes, later blocks of a sequence before earlier ones.
///
/// The life of a sequence: add (prefix hits) -> [reserve -> forward -> commit]* -> release. Preemption is release, and
/// add again later. Not thread-safe: the scheduler owns it.
class BlockManager {
 public:
  explicit BlockManager(BlockManagerOptions options);
  ~BlockManager();
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  /// A new sequence with the cached part of `prompt` already in its table: computed() tokens, always fewer than the
  /// prompt, because the last token has to run to give logits. Needs no free block. Sequences of different salts never
  /// share.
  SequenceId add(std::span<const int32_t> prompt, std::string_view salt = {});

  /// The same search without a change.
  PrefixProbe probe(std::span<const int32_t> prompt, std::string_view salt = {}) const;

  /// Makes room for positions up to `tokens`, all or nothing. false: not enough blocks (nothing changed). A shared
  /// block that would be written is replaced; its copy is appended to `copies` and has to be made before the forward
  /// pass.
  [[nodiscard]] bool reserve(SequenceId id, int64_t tokens, std::vector<BlockCopy>& copies);
  /// Blocks that `reserve` would take.
  int64_t blocks_needed(SequenceId id, int64_t tokens) const;

  /// The keys and values of `tokens`, from position computed() on, are stored. Registers blocks that became full, and
  /// swaps them for equal ones that exist. `reserve` must have been called for these tokens after any fork or truncate.
  void commit(SequenceId id, std::span<const int32_t> tokens);

  /// A second sequence with the same computed tokens, sharing all blocks until one of them writes.
  SequenceId fork(SequenceId id);

  /// Drops what is stored from position `tokens` on (rejected drafts), and reserved room behind it. Not below a
  /// position that was forgotten.
  void truncate(SequenceId id, int64_t tokens);

  /// Gives up blocks that lie wholly before `position` (sliding windows); their table entries become -1.
  void forget_before(SequenceId id, int64_t position);

  /// Ends a sequence. Registered blocks stay findable until evicted.
  void release(SequenceId id);

  /// blocks()[p / block_size] holds position p. Valid until the next change of this sequence.
  std::span<const int32_t> table(SequenceId id) const;
  int64_t computed(SequenceId id) const;

  int64_t sequences() const;
  /// Blocks that can be taken now: never used, or cached and unreferenced.
  int64_t available() const;
  /// Unreferenced blocks whose contents can be found again.
  int64_t cached() const;
  /// Blocks that some sequence holds.
  int64_t referenced() const;
  const BlockManagerOptions& options() const { return options_; }
  const BlockCounters& counters() const;

  /// Forgets all cached contents that nobody references.
  void clear_cache();

 private:
  struct Impl;
  BlockManagerOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tare::kvcache
