#include "kvcache/block_manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <unordered_map>

#include "base/checked.h"

namespace tare::kvcache {

namespace {

constexpr int32_t kNone = -1;
constexpr size_t kMostRoots = 4096;

/// Finalizer of splitmix64: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// What a block is registered under. `parent` names the predecessor for good: numbers are never used twice.
struct PrefixKey {
  uint64_t parent = 0;
  std::span<const int32_t> tokens;
};
uint64_t hash_of(const PrefixKey& key, uint64_t seed) {
  uint64_t h = mix(key.parent + seed);
  for (const int32_t token : key.tokens) h = mix(h + 0x9e3779b97f4a7c15u + static_cast<uint32_t>(token));
  return h;
}

struct Block {
  int32_t references = 0;
  // Registered blocks: their number, what they follow, their tokens, their hash.
  uint64_t number = 0;  // 0 = not registered
  uint64_t parent = 0;
  uint64_t hash = 0;
  std::vector<int32_t> tokens;
  // Neighbours in the list of cached, unreferenced blocks.
  int32_t older = kNone;
  int32_t newer = kNone;
};

struct Sequence {
  std::vector<int32_t> table;
  std::vector<int32_t> tokens;  // computed ones
  uint64_t root = 0;
  std::vector<uint64_t> chain;  // number of each full block

  int64_t computed() const { return static_cast<int64_t>(tokens.size()); }
};

}  // namespace

Result<int64_t> blocks_for_budget(int64_t budget_bytes, int64_t block_bytes) {
  assert(block_bytes > 0);
  const int64_t blocks = budget_bytes / block_bytes;
  if (blocks >= 1) return blocks;
  return does_not_fit("the KV cache has no room for one block", {.expected = fmt::format("{} bytes", block_bytes),
                                                                 .found = fmt::format("{} bytes", budget_bytes),
                                                                 .hint = "raise --kv-cache-memory-bytes or --memory, "
                                                                         "or use a smaller --kv-cache-dtype"});
}

struct BlockManager::Impl {
  const BlockManagerOptions& options;
  std::vector<Block> blocks;
  std::vector<int32_t> unused;  // blocks without contents
  int32_t oldest = kNone;       // cached, unreferenced blocks
  int32_t newest = kNone;
  int64_t cached = 0;
  std::unordered_multimap<uint64_t, int32_t> registered;  // hash -> block
  std::unordered_map<std::string, uint64_t> roots;        // by salt
  std::unordered_map<SequenceId, Sequence> sequences;
  uint64_t next_number = 1;
  SequenceId next_sequence = 1;
  BlockCounters counters;

  explicit Impl(const BlockManagerOptions& o) : options(o), blocks(static_cast<size_t>(o.num_blocks)) {
    for (auto i = static_cast<int32_t>(o.num_blocks); i-- > 0;) unused.push_back(i);
  }

  Block& block(int32_t id) { return blocks[static_cast<size_t>(id)]; }
  Sequence& sequence(SequenceId id) {
    const auto found = sequences.find(id);
    assert(found != sequences.end());
    return found->second;
  }

  // --- the list of cached blocks ---

  void push_newest(int32_t id) {
    Block& b = block(id);
    b.older = newest;
    b.newer = kNone;
    if (newest != kNone) block(newest).newer = id;
    newest = id;
    if (oldest == kNone) oldest = id;
    ++cached;
  }
  void unlink(int32_t id) {
    Block& b = block(id);
    (b.older == kNone ? oldest : block(b.older).newer) = b.newer;
    (b.newer == kNone ? newest : block(b.newer).older) = b.older;
    --cached;
  }

  void forget(int32_t id) {
    Block& b = block(id);
    const auto [begin, end] = registered.equal_range(b.hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second == id) {
        registered.erase(it);
        break;
      }
    }
    b.number = 0;
    b.tokens.clear();
  }

  // --- references ---

  int64_t available() const { return static_cast<int64_t>(unused.size()) + cached; }

  /// A block to write. The caller has checked that one is available.
  int32_t take() {
    int32_t id = kNone;
    if (!unused.empty()) {
      id = unused.back();
      unused.pop_back();
    } else {
      id = oldest;
      unlink(id);
      forget(id);
      ++counters.evictions;
    }
    block(id).references = 1;
    return id;
  }
  void reference(int32_t id) {
    Block& b = block(id);
    if (b.references++ == 0) unlink(id);
  }
  void drop(int32_t id) {
    Block& b = block(id);
    if (--b.references > 0) return;
    if (b.number != 0) {
      push_newest(id);
    } else {
      unused.push_back(id);
    }
  }

  int32_t find(const PrefixKey& key) {
    const auto [begin, end] = registered.equal_range(hash_of(key, options.hash_seed));
    for (auto it = begin; it != end; ++it) {
      const Block& b = block(it->second);
      if (b.parent == key.parent &&
          std::equal(b.tokens.begin(), b.tokens.end(), key.tokens.begin(), key.tokens.end())) {
        return it->second;
      }
    }
    return kNone;
  }

  uint64_t root_of(std::string_view salt) {
    // Lengths keep ("ab", "c") and ("a", "bc") apart.
    const std::string key = fmt::format("{}:{}{}:{}{}", options.model.size(), options.model, options.kv_format.size(),
                                        options.kv_format, salt);
    const auto found = roots.find(key);
    if (found != roots.end()) return found->second;
    // Clients choose salts. What hangs on forgotten roots is not found any more, and evicted in its turn.
    if (roots.size() >= kMostRoots) roots.clear();
    return roots.emplace(key, next_number++).first->second;
  }

  /// The last computed block became full: register it, or swap it for an equal one.
  void close_block(Sequence& s) {
    if (!options.prefix_caching) return;
    const size_t index = s.chain.size();
    const PrefixKey key{s.chain.empty() ? s.root : s.chain.back(),
                        std::span(s.tokens).last(static_cast<size_t>(options.block_size))};
    int32_t& own = s.table[index];
    const int32_t same = find(key);
    if (same != kNone) {
      reference(same);
      drop(own);
      own = same;
      ++counters.merges;
    } else {
      Block& b = block(own);
      assert(b.number == 0 && "written without reserve");
      b.number = next_number++;
      b.parent = key.parent;
      b.hash = hash_of(key, options.hash_seed);
      b.tokens.assign(key.tokens.begin(), key.tokens.end());
      registered.emplace(b.hash, own);
    }
    s.chain.push_back(block(own).number);
  }
};

BlockManager::BlockManager(BlockManagerOptions options)
    : options_(std::move(options)), impl_(std::make_unique<Impl>(options_)) {
  assert(options_.num_blocks >= 0 && options_.block_size >= 1);
}
BlockManager::~BlockManager() = default;

PrefixProbe BlockManager::probe(std::span<const int32_t> prompt, std::string_view salt) const {
  PrefixProbe out;
  if (!options_.prefix_caching) return out;
  const int64_t size = options_.block_size;
  uint64_t parent = impl_->root_of(salt);
  while (out.tokens + size < static_cast<int64_t>(prompt.size())) {
    const int32_t hit =
        impl_->find({parent, prompt.subspan(static_cast<size_t>(out.tokens), static_cast<size_t>(size))});
    if (hit == kNone) break;
    const Block& b = impl_->block(hit);
    parent = b.number;
    out.tokens += size;
    ++out.blocks;
    if (b.references == 0) ++out.unreferenced;
  }
  return out;
}

SequenceId BlockManager::add(std::span<const int32_t> prompt, std::string_view salt) {
  const SequenceId id = impl_->next_sequence++;
  Sequence s;
  s.root = impl_->root_of(salt);
  const int64_t size = options_.block_size;
  const auto tokens = static_cast<int64_t>(prompt.size());
  impl_->counters.queried_tokens += tokens;
  if (options_.prefix_caching) {
    while (s.computed() + size < tokens) {
      const uint64_t parent = s.chain.empty() ? s.root : s.chain.back();
      const auto next = prompt.subspan(s.tokens.size(), static_cast<size_t>(size));
      const int32_t hit = impl_->find({parent, next});
      if (hit == kNone) break;
      impl_->reference(hit);
      s.table.push_back(hit);
      s.chain.push_back(impl_->block(hit).number);
      s.tokens.insert(s.tokens.end(), next.begin(), next.end());
    }
    impl_->counters.hit_tokens += s.computed();
  }
  impl_->sequences.emplace(id, std::move(s));
  return id;
}

int64_t BlockManager::blocks_needed(SequenceId id, int64_t tokens) const {
  const Sequence& s = impl_->sequence(id);
  const auto have = static_cast<int64_t>(s.table.size());
  int64_t needed = std::max<int64_t>(0, ceil_div(tokens, options_.block_size) - have);
  const int64_t first = s.computed() / options_.block_size;
  // Blocks from the first written one on that others hold too.
  for (int64_t i = first; i < have && i * options_.block_size < tokens; ++i) {
    if (impl_->block(s.table[static_cast<size_t>(i)]).references > 1) ++needed;
  }
  return needed;
}

bool BlockManager::reserve(SequenceId id, int64_t tokens, std::vector<BlockCopy>& copies) {
  if (blocks_needed(id, tokens) > impl_->available()) return false;
  Sequence& s = impl_->sequence(id);
  const int64_t size = options_.block_size;
  for (int64_t i = s.computed() / size; i < static_cast<int64_t>(s.table.size()) && i * size < tokens; ++i) {
    int32_t& entry = s.table[static_cast<size_t>(i)];
    Block& held = impl_->block(entry);
    if (held.references == 1) {
      // Findable, but about to change (a sequence that was cut back).
      if (held.number != 0) impl_->forget(entry);
      continue;
    }
    const int32_t own = impl_->take();
    // Only a block with computed tokens has something to copy.
    if (i * size < s.computed()) {
      copies.push_back({entry, own});
      ++impl_->counters.copies;
    }
    impl_->drop(entry);
    entry = own;
  }
  while (static_cast<int64_t>(s.table.size()) * size < tokens) s.table.push_back(impl_->take());
  return true;
}

void BlockManager::commit(SequenceId id, std::span<const int32_t> tokens) {
  Sequence& s = impl_->sequence(id);
  assert(s.computed() + static_cast<int64_t>(tokens.size()) <=
         static_cast<int64_t>(s.table.size()) * options_.block_size);
  for (const int32_t token : tokens) {
    s.tokens.push_back(token);
    if (s.computed() % options_.block_size == 0) impl_->close_block(s);
  }
}

SequenceId BlockManager::fork(SequenceId id) {
  const SequenceId copy = impl_->next_sequence++;
  Sequence s = impl_->sequence(id);
  // Room that was reserved beyond the computed tokens stays with the original.
  s.table.resize(std::min(s.table.size(), static_cast<size_t>(ceil_div(s.computed(), options_.block_size))));
  for (const int32_t b : s.table) {
    if (b != kNone) ++impl_->block(b).references;
  }
  impl_->sequences.emplace(copy, std::move(s));
  return copy;
}

void BlockManager::truncate(SequenceId id, int64_t tokens) {
  Sequence& s = impl_->sequence(id);
  assert(tokens >= 0);
  const int64_t size = options_.block_size;
  while (static_cast<int64_t>(s.table.size()) > ceil_div(tokens, size)) {
    if (s.table.back() != kNone) impl_->drop(s.table.back());
    s.table.pop_back();
  }
  if (tokens >= s.computed()) return;
  s.tokens.resize(static_cast<size_t>(tokens));
  s.chain.resize(std::min(s.chain.size(), static_cast<size_t>(tokens / size)));
}

void BlockManager::forget_before(SequenceId id, int64_t position) {
  Sequence& s = impl_->sequence(id);
  const int64_t end = std::min(position / options_.block_size, s.computed() / options_.block_size);
  for (int64_t i = std::min<int64_t>(end, static_cast<int64_t>(s.table.size())); i-- > 0;) {
    int32_t& entry = s.table[static_cast<size_t>(i)];
    if (entry == kNone) break;
    impl_->drop(entry);
    entry = kNone;
  }
}

void BlockManager::release(SequenceId id) {
  Sequence& s = impl_->sequence(id);
  // Last block first: it becomes the older one, and goes before those that it cannot be found without.
  for (size_t i = s.table.size(); i-- > 0;) {
    if (s.table[i] != kNone) impl_->drop(s.table[i]);
  }
  impl_->sequences.erase(id);
}

std::span<const int32_t> BlockManager::table(SequenceId id) const {
  return impl_->sequence(id).table;
}
int64_t BlockManager::computed(SequenceId id) const {
  return impl_->sequence(id).computed();
}
int64_t BlockManager::sequences() const {
  return static_cast<int64_t>(impl_->sequences.size());
}
int64_t BlockManager::available() const {
  return impl_->available();
}
int64_t BlockManager::cached() const {
  return impl_->cached;
}
int64_t BlockManager::referenced() const {
  return options_.num_blocks - impl_->available();
}
const BlockCounters& BlockManager::counters() const {
  return impl_->counters;
}

void BlockManager::clear_cache() {
  while (impl_->oldest != kNone) {
    const int32_t id = impl_->oldest;
    impl_->unlink(id);
    impl_->forget(id);
    impl_->unused.push_back(id);
  }
}

}  // namespace tare::kvcache
