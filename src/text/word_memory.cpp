#include "text/word_memory.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace tare::text {

namespace {

// Up to 8 bytes as a number, zeros behind them; without a call and without reading beyond them.
uint64_t load_bytes(const char* at, size_t count) {
  if (count >= 8) {
    uint64_t all;
    std::memcpy(&all, at, 8);
    return all;
  }
  if (count >= 4) {
    uint32_t first, last;  // may overlap in equal bytes
    std::memcpy(&first, at, 4);
    std::memcpy(&last, at + count - 4, 4);
    return first | static_cast<uint64_t>(last) << (8 * (count - 4));
  }
  uint64_t all = 0;
  for (size_t i = 0; i < count; ++i) all |= static_cast<uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  return all;
}

}  // namespace

WordTable::Key::Key(Kind kind, std::string_view word) : word_(word), kind_(kind) {
  if (word.size() > kShort) {
    hash_ = hash_bytes(word) + static_cast<uint64_t>(kind) * 0x9E3779B97F4A7C15ull;
    return;
  }
  for (size_t i = 0; i * 8 < word.size(); ++i) bytes_[i] = load_bytes(word.data() + i * 8, word.size() - i * 8);
  uint64_t h = (bytes_[0] ^ (word.size() << 2 | static_cast<uint64_t>(kind))) * 0x9E3779B97F4A7C15ull;
  h = (h ^ h >> 32 ^ bytes_[1]) * 0xFF51AFD7ED558CCDull;
  h = (h ^ h >> 32 ^ bytes_[2]) * 0xC4CEB9FE1A85EC53ull;
  hash_ = h ^ h >> 29;
}

WordTable::WordTable(size_t slots)
    : short_(slots), long_(slots / 8), short_mask_(slots - 1), long_mask_(slots / 8 - 1) {}

template <class AnySlot>
bool WordTable::put_into(std::vector<AnySlot>& slots, size_t mask, const Key& key, std::span<const WordToken> tokens) {
  for (size_t i = 0; i < kProbes; ++i) {
    AnySlot& slot = slots[(key.hash_ + i) & mask];
    uint32_t tag = slot.tag.load(std::memory_order_acquire);
    if (tag == kFree && slot.tag.compare_exchange_strong(tag, kWriting, std::memory_order_acquire)) {
      slot.kind = key.kind_;
      slot.bytes = static_cast<uint8_t>(key.word_.size());
      slot.tokens = static_cast<uint8_t>(tokens.size());
      std::memcpy(slot.word.data(), key.word_.data(), key.word_.size());
      for (size_t t = 0; t < tokens.size(); ++t) {
        slot.ids[t] = tokens[t].id;
        slot.begins[t] = tokens[t].begin;
        slot.ends[t] = tokens[t].end;
      }
      slot.tag.store(tag_of(key.hash_), std::memory_order_release);
      return true;
    }
    // Another thread may have been here with the same word.
    if (tag == tag_of(key.hash_) && slot.is(key)) return true;
  }
  return false;
}

void WordTable::put(const Key& key, std::span<const WordToken> tokens) {
  if (tokens.size() > kMostTokens) return;
  const bool is_short = key.word_.size() <= kShort && tokens.size() <= std::tuple_size_v<decltype(ShortSlot::ids)>;
  if (!(is_short ? put_into(short_, short_mask_, key, tokens) : put_into(long_, long_mask_, key, tokens))) {
    refused_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::shared_ptr<WordTable> WordMemory::table(size_t text_bytes) {
  constexpr size_t kFewestSlots = 1024;
  const std::lock_guard lock(mutex_);
  const size_t wanted = std::clamp(std::bit_ceil(text_bytes / 8), kFewestSlots, kMostSlots);
  if (!table_) {
    if (text_bytes < 256) return nullptr;
    table_ = std::make_shared<WordTable>(wanted);
  } else if (table_->is_worn() || wanted > table_->slots() * 4) {
    table_ = std::make_shared<WordTable>(std::min(std::max(wanted, table_->slots() * 4), kMostSlots));
  }
  return table_;
}

}  // namespace tare::text
