#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace tare::text {

/// A token of a word, with the bytes of the word that it stands for.
struct WordToken {
  TokenId id;
  uint8_t begin, end;
};

/// The tokens of words, one table for all calls of a tokenizer. An entry is written once and then only read, so readers
/// take no lock; a word that finds no free place is not remembered. What is found is what would be computed, whatever
/// the order of calls. Safe to use from any thread.
///
///   short slot, one cache line:  |tag 4|kind 1|bytes 1|tokens 1|-|word 24|ids 5 x 4|ends 5 x 2|
///   long slot, two:              |tag 4|kind 1|bytes 1|tokens 1|-|word 56|ids 10 x 4|ends 10 x 2|
class WordTable {
 public:
  /// What a word went through: words of different kinds do not meet.
  enum class Kind : uint8_t { kWord, kWordSpecialsAsText, kPiece };

  static constexpr size_t kLongest = 56;  // bytes
  static constexpr size_t kMostTokens = 10;

  /// A table with this many short slots (a power of two, >= 64) and an eighth of it long ones.
  explicit WordTable(size_t slots);

  /// A word with its hash, made once for finding and putting.
  class Key {
   public:
    /// word: at most kLongest bytes.
    Key(Kind kind, std::string_view word);

   private:
    friend class WordTable;
    std::string_view word_;
    std::array<uint64_t, 3> bytes_{};  // of a word of at most 24, zeros behind it
    uint64_t hash_;
    Kind kind_;
  };

  /// Calls visit(token) for each token of the word; false if the word is not known.
  template <class Visit>
  bool find(const Key& key, Visit visit) const {
    if (key.word_.size() <= kShort) {
      for (size_t i = 0; i < kProbes; ++i) {
        const ShortSlot& slot = short_[(key.hash_ + i) & short_mask_];
        const uint32_t tag = slot.tag.load(std::memory_order_acquire);
        if (tag == kFree) break;
        if (tag != tag_of(key.hash_) || !slot.is(key)) continue;
        slot.visit(visit);
        return true;
      }
    }
    for (size_t i = 0; i < kProbes; ++i) {
      const LongSlot& slot = long_[(key.hash_ + i) & long_mask_];
      const uint32_t tag = slot.tag.load(std::memory_order_acquire);
      if (tag == kFree) return false;
      if (tag != tag_of(key.hash_) || !slot.is(key)) continue;
      slot.visit(visit);
      return true;
    }
    return false;
  }

  /// Remembers the tokens of a word that is not known, if there is room for it.
  void put(const Key& key, std::span<const WordToken> tokens);

  size_t slots() const { return short_mask_ + 1; }
  /// Whether so many words found no room that a new table would serve better.
  bool is_worn() const { return refused_.load(std::memory_order_relaxed) > slots() / 2; }

 private:
  static constexpr size_t kShort = 24;
  static constexpr size_t kProbes = 4;
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kWriting = 1;
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 2; }

  template <size_t kBytes, size_t kTokens>
  struct alignas(64) Slot {
    std::atomic<uint32_t> tag{kFree};
    Kind kind{};
    uint8_t bytes = 0;
    uint8_t tokens = 0;
    std::array<uint64_t, kBytes / 8> word{};
    std::array<TokenId, kTokens> ids{};
    std::array<uint8_t, kTokens> begins{}, ends{};

    bool is(const Key& key) const {
      if (kind != key.kind_ || bytes != key.word_.size()) return false;
      if constexpr (kBytes == kShort) {
        return ((word[0] ^ key.bytes_[0]) | (word[1] ^ key.bytes_[1]) | (word[2] ^ key.bytes_[2])) == 0;
      } else {
        return std::memcmp(word.data(), key.word_.data(), bytes) == 0;
      }
    }
    template <class Visit>
    void visit(Visit& visit) const {
      for (size_t i = 0; i < tokens; ++i) visit(WordToken{ids[i], begins[i], ends[i]});
    }
  };
  using ShortSlot = Slot<kShort, 5>;
  using LongSlot = Slot<kLongest, kMostTokens>;
  static_assert(sizeof(ShortSlot) == 64 && sizeof(LongSlot) == 128);

  template <class AnySlot>
  bool put_into(std::vector<AnySlot>& slots, size_t mask, const Key& key, std::span<const WordToken> tokens);

  std::vector<ShortSlot> short_;
  std::vector<LongSlot> long_;
  size_t short_mask_, long_mask_;
  std::atomic<size_t> refused_{0};
};

/// The table that the calls of one tokenizer share. It begins small, and is replaced by a larger one (at most
/// kMostSlots), in the end by an empty one, when it has become full of words that do not come again. Calls that still
/// read the old one keep it until they end. Safe to use from any thread.
class WordMemory {
 public:
  WordMemory() = default;
  /// A copy begins empty: it may belong to another tokenizer.
  WordMemory(const WordMemory&) : WordMemory() {}
  WordMemory& operator=(const WordMemory&) = delete;

  /// The table for a call on so many bytes; null for a short text that would be the first.
  std::shared_ptr<WordTable> table(size_t text_bytes);

  static constexpr size_t kMostSlots = size_t{1} << 16;  // 5 MiB

 private:
  std::mutex mutex_;
  std::shared_ptr<WordTable> table_;
};

}  // namespace tare::text
