#include "text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tare::text {

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t h = bytes.size() * 0x9E3779B97F4A7C15ull;
  const char* at = bytes.data();
  size_t left = bytes.size();
  while (left >= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    h = (h ^ word) * 0xFF51AFD7ED558CCDull;
    h ^= h >> 32;
    at += 8;
    left -= 8;
  }
  uint64_t word = 0;
  std::memcpy(&word, at, left);
  h = (h ^ word) * 0xFF51AFD7ED558CCDull;
  h ^= h >> 29;
  h *= 0xC4CEB9FE1A85EC53ull;
  return h ^ h >> 32;
}

Result<Vocabulary> Vocabulary::create(std::vector<std::string> tokens, std::string_view where,
                                      const std::vector<bool>& hidden) {
  constexpr size_t kMaxTokens = size_t{1} << 24;
  size_t total = 0;
  for (const std::string& token : tokens) total += token.size();
  if (tokens.size() > kMaxTokens || total > UINT32_MAX) {
    return invalid_input("vocabulary too large", {.where = std::string(where),
                                                  .expected = fmt::format("at most {} tokens in 4 GiB", kMaxTokens),
                                                  .found = fmt::format("{} tokens, {} bytes", tokens.size(), total)});
  }
  Vocabulary out;
  out.bytes_.reserve(total);
  out.offsets_.reserve(tokens.size() + 1);
  out.offsets_.push_back(0);
  for (const std::string& token : tokens) {
    out.bytes_ += token;
    out.offsets_.push_back(static_cast<uint32_t>(out.bytes_.size()));
  }
  out.slots_.assign(std::bit_ceil(std::max<size_t>(16, tokens.size() * 2)), kNoToken);
  const size_t mask = out.slots_.size() - 1;
  for (TokenId id = 0; id < static_cast<TokenId>(tokens.size()); ++id) {
    if (!hidden.empty() && hidden[id]) continue;
    const std::string& token = tokens[id];
    size_t at = hash_bytes(token) & mask;
    while (out.slots_[at] != kNoToken) {
      if (out.token(out.slots_[at]) == token) {
        return invalid_input("one token text has two ids",
                             {.where = std::string(where),
                              .expected = "each text once",
                              .found = fmt::format("'{}' as {} and {}", token.substr(0, 100), out.slots_[at], id)});
      }
      at = (at + 1) & mask;
    }
    out.slots_[at] = id;
  }
  return out;
}

TokenId Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return kNoToken;
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash_bytes(text) & mask; slots_[at] != kNoToken; at = (at + 1) & mask) {
    if (token(slots_[at]) == text) return slots_[at];
  }
  return kNoToken;
}

void PairMap::reserve(size_t pairs) {
  const size_t slots = std::bit_ceil(std::max<size_t>(16, pairs * 2));
  if (slots <= slots_.size()) return;
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, Slot{});
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) {
      insert(static_cast<TokenId>(slot.key >> 32), static_cast<TokenId>(slot.key & 0xFFFFFFFF), slot.merge);
    }
  }
}

bool PairMap::insert(TokenId left, TokenId right, Merge merge) {
  if ((size_ + 1) * 2 > slots_.size()) reserve((size_ + 1) * 2);
  const uint64_t key = pack(left, right);
  for (size_t at = slot_of(key);; at = (at + 1) & mask_) {
    if (slots_[at].key == key) return false;
    if (slots_[at].key == kEmpty) {
      slots_[at] = {key, merge};
      ++size_;
      return true;
    }
  }
}

Trie::Trie(std::vector<Entry> entries) {
  std::erase_if(entries, [](const Entry& entry) { return entry.key.empty(); });
  if (entries.empty()) return;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  entries.erase(
      std::unique(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key == b.key; }),
      entries.end());
  // Breadth first: a node owns a range of the sorted entries that share its prefix of `depth` bytes.
  struct Open {
    uint32_t node;
    size_t begin, end, depth;
  };
  nodes_.emplace_back();
  std::vector<Open> open{{0, 0, entries.size(), 0}};
  for (size_t i = 0; i < open.size(); ++i) {
    const Open here = open[i];
    size_t at = here.begin;
    if (entries[at].key.size() == here.depth) {
      nodes_[here.node].value = entries[at].value;
      ++at;
    }
    nodes_[here.node].first_child = static_cast<uint32_t>(nodes_.size());
    uint16_t children = 0;
    while (at < here.end) {
      const char label = entries[at].key[here.depth];
      size_t next = at;
      while (next < here.end && entries[next].key[here.depth] == label) ++next;
      const auto node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].label = static_cast<uint8_t>(label);
      if (here.depth == 0) root_[static_cast<unsigned char>(label)] = node;
      open.push_back({node, at, next, here.depth + 1});
      ++children;
      at = next;
    }
    nodes_[here.node].children = children;
  }
}

uint32_t Trie::child(uint32_t node, uint8_t label) const {
  const Node& here = nodes_[node];
  uint32_t low = here.first_child;
  uint32_t high = low + here.children;
  while (high - low > 8) {
    const uint32_t middle = (low + high) / 2;
    if (nodes_[middle].label <= label) {
      low = middle;
    } else {
      high = middle;
    }
  }
  for (; low < high; ++low) {
    if (nodes_[low].label == label) return low;
  }
  return 0;
}

Trie::Match Trie::longest(std::string_view text, size_t at) const {
  Match best;
  prefixes(text, at, [&](size_t bytes, int32_t value) { best = {bytes, value}; });
  return best;
}

}  // namespace tare::text
