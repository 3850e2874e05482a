#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::text {

using TokenId = int32_t;
inline constexpr TokenId kNoToken = -1;

/// Hash of a byte string for the tables of this room (not for hostile-proof uses: tables are sized for their content).
uint64_t hash_bytes(std::string_view bytes);

/// Tokens of a model by id and by text. Ids are dense from 0; texts are unique. Immutable after `finish`.
class Vocabulary {
 public:
  /// `tokens[id]` = text. `hidden[id]` (may be empty): tokens that have an id and a text but that `find` does not find.
  /// Errors: more than 2^24 tokens, two ids that are not hidden with one text (named).
  static Result<Vocabulary> create(std::vector<std::string> tokens, std::string_view where,
                                   const std::vector<bool>& hidden = {});

  size_t size() const { return offsets_.empty() ? 0 : offsets_.size() - 1; }
  std::string_view token(TokenId id) const {
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  /// Id of a text, or kNoToken.
  TokenId find(std::string_view text) const;

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_;
  std::vector<TokenId> slots_;  // open addressing, a power of two
};

/// Map from a pair of ids to (rank, merged id): the merges of a BPE model. Open addressing; keys are unique.
class PairMap {
 public:
  struct Merge {
    uint32_t rank;
    TokenId id;
  };
  void reserve(size_t pairs);
  /// False if the pair is there already (and nothing changes).
  bool insert(TokenId left, TokenId right, Merge merge);
  const Merge* find(TokenId left, TokenId right) const {
    if (slots_.empty()) return nullptr;
    const uint64_t key = pack(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return &slots_[at].merge;
      if (slots_[at].key == kEmpty) return nullptr;
    }
  }
  size_t size() const { return size_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.key != kEmpty) visit(slot.merge);
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{};
  };
  static uint64_t pack(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> shift_; }

  std::vector<Slot> slots_;
  size_t size_ = 0;
  size_t mask_ = 0;
  int shift_ = 64;
};

/// Prefix tree over byte strings with an int32 value each. Built once from a list; immutable.
/// Children of a node are neighbours sorted by label, so the tree is three flat arrays.
class Trie {
 public:
  struct Entry {
    std::string_view key;
    int32_t value;
  };
  Trie() = default;
  /// Empty keys are ignored; of two equal keys the first is kept.
  explicit Trie(std::vector<Entry> entries);

  bool empty() const { return nodes_.empty(); }
  bool starts(char first) const { return root_[static_cast<unsigned char>(first)] != 0; }

  struct Match {
    size_t bytes = 0;  // 0: none
    int32_t value = -1;
  };
  /// Longest key that text[at..] starts with.
  Match longest(std::string_view text, size_t at) const;

  /// Calls visit(bytes, value) for every key that text[at..] starts with, shortest first.
  template <class Visit>
  void prefixes(std::string_view text, size_t at, Visit visit) const {
    if (nodes_.empty() || at >= text.size()) return;
    uint32_t node = root_[static_cast<unsigned char>(text[at])];
    size_t bytes = 1;
    while (node != 0) {
      if (nodes_[node].value >= 0) visit(bytes, nodes_[node].value);
      if (at + bytes >= text.size()) return;
      node = child(node, static_cast<unsigned char>(text[at + bytes]));
      ++bytes;
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t value = -1;
  };
  uint32_t child(uint32_t node, uint8_t label) const;

  std::vector<Node> nodes_;
  std::vector<uint32_t> root_ = std::vector<uint32_t>(256, 0);
};

}  // namespace tare::text
