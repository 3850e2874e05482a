#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace tare::text {

namespace {

// Below this a scan over all ranks is faster than a heap.
constexpr size_t kShortWord = 32;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

std::string byte_token(int byte) {
  return fmt::format("<0x{:02X}>", byte);
}

}  // namespace

Result<Bpe> Bpe::from_merges(const Vocabulary& vocabulary,
                             const std::vector<std::pair<std::string, std::string>>& merges, BpeOptions options,
                             std::string_view where) {
  Bpe bpe;
  bpe.options_ = std::move(options);
  const std::string& prefix = bpe.options_.continuing_prefix;
  if (!bpe.options_.unknown.empty()) {
    bpe.unknown_ = vocabulary.find(bpe.options_.unknown);
    if (bpe.unknown_ == kNoToken) {
      return invalid_input("the unknown token is not in the vocabulary",
                           {.where = std::string(where), .found = bpe.options_.unknown});
    }
  }
  bpe.merges_.reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const auto missing = [&](std::string_view token) {
      return invalid_input(
          "a merge names a token that is not in the vocabulary",
          {.where = fmt::format("{}: merge {}", where, rank), .found = std::string(token.substr(0, 200))});
    };
    const TokenId left_id = vocabulary.find(left);
    if (left_id == kNoToken) return missing(left);
    const TokenId right_id = vocabulary.find(right);
    if (right_id == kNoToken) return missing(right);
    if (!right.starts_with(prefix)) return missing(right);
    joined = left;
    joined += std::string_view(right).substr(prefix.size());
    const TokenId id = vocabulary.find(joined);
    if (id == kNoToken) return missing(joined);
    if (!bpe.merges_.insert(left_id, right_id, {static_cast<uint32_t>(rank), id})) {
      return invalid_input("a merge is listed twice", {.where = fmt::format("{}: merge {}", where, rank),
                                                       .found = fmt::format("'{}' '{}'", left, right)});
    }
  }
  if (bpe.options_.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) bpe.byte_tokens_[byte] = vocabulary.find(byte_token(byte));
    bpe.has_byte_tokens_ = true;
  }
  bpe.index_chars(vocabulary);
  return bpe;
}

Result<Bpe> Bpe::from_ranks(const Vocabulary& vocabulary, const std::vector<uint32_t>& ranks,
                            const std::vector<bool>& unused, BpeOptions options, std::string_view where) {
  Bpe bpe;
  bpe.options_ = std::move(options);
  if (!bpe.options_.unknown.empty()) {
    bpe.unknown_ = vocabulary.find(bpe.options_.unknown);
    if (bpe.unknown_ == kNoToken) {
      return invalid_input("the unknown token is not in the vocabulary",
                           {.where = std::string(where), .found = bpe.options_.unknown});
    }
  }
  const auto mergeable = [&](TokenId id) { return id != kNoToken && ranks[id] != kNotMerged; };
  // Characters that occur in tokens but are none: they get ids behind the vocabulary so that pairs can be formed.
  std::vector<std::string> extra;
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    if (!mergeable(id)) continue;
    const std::string_view token = vocabulary.token(id);
    for (size_t at = 0; at < token.size();) {
      const size_t bytes = char_bytes(token[at]);
      const std::string_view c = token.substr(at, bytes);
      if (bytes < token.size() && !mergeable(vocabulary.find(c))) extra.emplace_back(c);
      at += bytes;
    }
  }
  std::sort(extra.begin(), extra.end());
  extra.erase(std::unique(extra.begin(), extra.end()), extra.end());
  bpe.first_extra_ = static_cast<TokenId>(vocabulary.size());
  TARE_ASSIGN(Vocabulary extra_vocabulary, Vocabulary::create(extra, where));
  bpe.extra_ = std::move(extra_vocabulary);
  const auto id_of = [&](std::string_view text) {
    const TokenId id = vocabulary.find(text);
    if (mergeable(id)) return id;
    const TokenId other = bpe.extra_->find(text);
    return other == kNoToken ? kNoToken : bpe.first_extra_ + other;
  };
  bpe.parts_.assign(vocabulary.size(), {kNoToken, kNoToken});
  for (const uint32_t rank : ranks) bpe.starts_words_.push_back(rank != kNotMerged);
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    if (!mergeable(id)) continue;
    const std::string_view token = vocabulary.token(id);
    uint64_t best = UINT64_MAX;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if (is_continuation(token[cut])) continue;
      const TokenId left = id_of(token.substr(0, cut));
      if (left == kNoToken) continue;
      const TokenId right = id_of(token.substr(cut));
      if (right == kNoToken) continue;
      bpe.merges_.insert(left, right, {ranks[id], id});
      // An unused token is taken apart along the join that would have made it.
      const uint64_t cost = left >= bpe.first_extra_ ? 0 : ranks[left];
      if (!unused.empty() && unused[id] && cost <= best) {
        best = cost;
        bpe.parts_[id] = {left, right};
      }
    }
  }
  if (bpe.options_.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) bpe.byte_tokens_[byte] = vocabulary.find(byte_token(byte));
    bpe.has_byte_tokens_ = true;
  }
  bpe.index_chars(vocabulary);
  return bpe;
}

void Bpe::index_bytes(const Vocabulary& vocabulary) {
  // Unknown characters and prefixes go by characters, not bytes.
  indexed_ =
      unknown_ == kNoToken && !has_byte_tokens_ && options_.continuing_prefix.empty() && options_.word_suffix.empty();
  if (!indexed_) return;
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text.clear();
    append_utf8(text, byte_to_char(static_cast<uint8_t>(byte)));
    initial_[byte] = vocabulary.find(text);
  }
  if (!options_.ignore_merges) return;
  // A piece is looked up by its bytes: tokens through the alphabet backwards. Tokens with other characters cannot be
  // met.
  std::vector<std::string> raw;
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    const std::string_view token = vocabulary.token(id);
    if (vocabulary.find(token) != id) continue;  // hidden
    std::string bytes;
    bool all = true;
    for (size_t at = 0; at < token.size() && all;) {
      const DecodedChar c = decode_char(token.data(), at);
      at += c.bytes;
      const int byte = char_to_byte(c.value);
      all = byte >= 0;
      if (all) bytes += static_cast<char>(byte);
    }
    if (!all) continue;
    raw.push_back(std::move(bytes));
    whole_ids_.push_back(id);
  }
  // Distinct tokens have distinct bytes, so this cannot fail.
  auto whole = Vocabulary::create(std::move(raw), "byte index");
  if (whole.ok()) whole_ = std::move(*whole);
}

TokenId Bpe::start_of(const Vocabulary& vocabulary, std::string_view character) const {
  const TokenId id = vocabulary.find(character);
  const bool ranked = first_extra_ != INT32_MAX;
  if (!ranked || (id != kNoToken && starts_words_[id])) return id;
  // Only what merges knows; the rest is settled after the joins.
  const TokenId other = extra_->find(character);
  return other == kNoToken ? first_extra_ + static_cast<TokenId>(extra_->size()) : first_extra_ + other;
}

void Bpe::index_chars(const Vocabulary& vocabulary) {
  for (size_t c = 0; c < ascii_.size(); ++c) {
    const char character = static_cast<char>(c);
    ascii_[c] = start_of(vocabulary, {&character, 1});
  }
  mark_ = start_of(vocabulary, kSpaceMark);
}

void Bpe::encode_chars(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenSpan>& out,
                       size_t& dropped) const {
  const bool ranked = first_extra_ != INT32_MAX;
  if (options_.ignore_merges) {
    const TokenId id = vocabulary.find(piece);
    if (id != kNoToken) {
      out.push_back({id, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  if (piece.size() <= kShortWord && options_.continuing_prefix.empty() && options_.word_suffix.empty()) {
    TokenSpan word[kShortWord];
    size_t n = 0;
    size_t at = 0;
    while (at < piece.size()) {
      const auto first = static_cast<unsigned char>(piece[at]);
      TokenSpan& span = word[n];
      if (first < 0x80) {
        span = {ascii_[first], 1};
      } else if (first == 0xE2 && piece.substr(at).starts_with(kSpaceMark)) {
        span = {mark_, 3};
      } else {
        const uint32_t bytes = char_bytes(piece[at]);
        span = {start_of(vocabulary, piece.substr(at, bytes)), bytes};
      }
      if (span.id == kNoToken) break;
      at += span.bytes;
      ++n;
    }
    if (at == piece.size()) {
      n = merge_short(word, n);
      const bool settled = !ranked || std::all_of(word, word + n, [&](const TokenSpan& span) {
        return span.id < first_extra_ && parts_[span.id].first == kNoToken;
      });
      if (settled) {
        out.insert(out.end(), word, word + n);
      } else {
        finish(vocabulary, piece, {word, n}, out, dropped);
      }
      return;
    }
  }
  std::vector<TokenSpan> word;
  word.reserve(piece.size());
  TokenSpan unknown{kNoToken, 0};  // waits, so that neighbours can be fused
  std::string buffer;
  for (size_t at = 0; at < piece.size();) {
    const uint32_t bytes = char_bytes(piece[at]);
    std::string_view c = piece.substr(at, bytes);
    const bool first = at == 0;
    at += bytes;
    if ((!first && !options_.continuing_prefix.empty()) || (at == piece.size() && !options_.word_suffix.empty())) {
      buffer.clear();
      if (!first) buffer += options_.continuing_prefix;
      buffer += c;
      if (at == piece.size()) buffer += options_.word_suffix;
      c = buffer;
    }
    const TokenId id = start_of(vocabulary, c);
    if (ranked) {
      word.push_back({id, bytes});
      continue;
    }
    if (id != kNoToken) {
      if (unknown.bytes != 0) word.push_back(unknown);
      unknown = {kNoToken, 0};
      word.push_back({id, bytes});
      continue;
    }
    if (has_byte_tokens_) {
      const bool all =
          std::all_of(c.begin(), c.end(), [&](char b) { return byte_tokens_[static_cast<uint8_t>(b)] != kNoToken; });
      if (all) {
        for (const char b : c) word.push_back({byte_tokens_[static_cast<uint8_t>(b)], 1});
        continue;
      }
    }
    if (unknown_ == kNoToken) {
      dropped += bytes;
      continue;
    }
    if (unknown.bytes != 0 && !options_.fuse_unknown) {
      word.push_back(unknown);
      unknown = {kNoToken, 0};
    }
    unknown.id = unknown_;
    unknown.bytes += bytes;
  }
  if (unknown.bytes != 0) word.push_back(unknown);
  merge(word);
  if (ranked) {
    finish(vocabulary, piece, word, out, dropped);
  } else {
    out.insert(out.end(), word.begin(), word.end());
  }
}

// SentencePiece: unused tokens are taken apart, what is no token becomes bytes or (fused) unknown.
void Bpe::finish(const Vocabulary& vocabulary, std::string_view piece, std::span<const TokenSpan> word,
                 std::vector<TokenSpan>& out, size_t& dropped) const {
  size_t at = 0;
  const size_t begin_out = out.size();
  std::vector<TokenSpan> stack;
  for (const TokenSpan& span : word) {
    stack.assign(1, span);
    while (!stack.empty()) {
      const TokenSpan top = stack.back();
      stack.pop_back();
      if (top.id < first_extra_) {
        const auto [left, right] = parts_[top.id];
        if (left == kNoToken) {
          out.push_back(top);
          at += top.bytes;
          continue;
        }
        const auto left_bytes = static_cast<uint32_t>(left < first_extra_ ? vocabulary.token(left).size()
                                                                          : extra_->token(left - first_extra_).size());
        stack.push_back({right, top.bytes - left_bytes});
        stack.push_back({left, left_bytes});
        continue;
      }
      const std::string_view bytes = piece.substr(at, top.bytes);
      at += top.bytes;
      const bool all = has_byte_tokens_ && std::all_of(bytes.begin(), bytes.end(), [&](char b) {
                         return byte_tokens_[static_cast<uint8_t>(b)] != kNoToken;
                       });
      if (all) {
        for (const char b : bytes) out.push_back({byte_tokens_[static_cast<uint8_t>(b)], 1});
      } else if (unknown_ == kNoToken) {
        dropped += bytes.size();
      } else if (options_.fuse_unknown && out.size() > begin_out && out.back().id == unknown_) {
        out.back().bytes += top.bytes;
      } else {
        out.push_back({unknown_, top.bytes});
      }
    }
  }
}

void Bpe::encode_bytes(std::string_view piece, std::vector<TokenSpan>& out, size_t& dropped) const {
  if (whole_) {
    const TokenId index = whole_->find(piece);
    if (index != kNoToken) {
      out.push_back({whole_ids_[index], static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  const size_t before = out.size();
  for (const char b : piece) {
    const TokenId id = initial_[static_cast<uint8_t>(b)];
    if (id == kNoToken) {
      ++dropped;
      continue;
    }
    out.push_back({id, 1});
  }
  const size_t n = out.size() - before;
  if (n <= 1) return;
  if (n > kShortWord) {
    std::vector<TokenSpan> word(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
    out.resize(before);
    merge_long(word);
    out.insert(out.end(), word.begin(), word.end());
    return;
  }
  out.resize(before + merge_short(out.data() + before, n));
}

void Bpe::merge(std::vector<TokenSpan>& word) const {
  if (word.size() <= 1) return;
  if (word.size() <= kShortWord) {
    word.resize(merge_short(word.data(), word.size()));
  } else {
    merge_long(word);
  }
}

size_t Bpe::merge_short(TokenSpan* word, size_t n) const {
  struct Pair {
    uint32_t rank;
    TokenId id;
  };
  Pair pairs[kShortWord];  // pairs[i]: word[i] with word[i + 1]
  const auto look = [&](size_t i) {
    const PairMap::Merge* merge = merges_.find(word[i].id, word[i + 1].id);
    pairs[i] = merge ? Pair{merge->rank, merge->id} : Pair{UINT32_MAX, kNoToken};
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].id == kNoToken) break;
    word[best] = {pairs[best].id, word[best].bytes + word[best + 1].bytes};
    std::copy(word + best + 2, word + n, word + best + 1);
    if (best + 2 < n) std::copy(pairs + best + 2, pairs + n - 1, pairs + best + 1);
    --n;
    if (best > 0) look(best - 1);
    if (best + 1 < n) look(best);
  }
  return n;
}

void Bpe::merge_long(std::vector<TokenSpan>& word) const {
  constexpr uint32_t kEnd = UINT32_MAX;
  const auto n = static_cast<uint32_t>(word.size());
  std::vector<uint32_t> previous(n), next(n);
  struct Candidate {
    uint64_t key;  // rank, then position: the smallest is next
    TokenId id;
  };
  const auto later = [](const Candidate& a, const Candidate& b) { return a.key > b.key; };
  std::vector<Candidate> heap;
  const auto candidate = [&](uint32_t left, uint32_t right) -> std::optional<Candidate> {
    const PairMap::Merge* merge = merges_.find(word[left].id, word[right].id);
    if (!merge) return std::nullopt;
    return Candidate{static_cast<uint64_t>(merge->rank) << 32 | left, merge->id};
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
    if (i + 1 < n) {
      if (const auto found = candidate(i, i + 1)) heap.push_back(*found);
    }
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](uint32_t left, uint32_t right) {
    if (left == kEnd || right == kEnd) return;
    if (const auto found = candidate(left, right)) {
      heap.push_back(*found);
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(top.key);
    if (word[left].bytes == 0 || next[left] == kEnd) continue;
    const uint32_t right = next[left];
    const PairMap::Merge* merge = merges_.find(word[left].id, word[right].id);
    if (!merge || merge->id != top.id) continue;  // one of the two has changed since
    word[left] = {top.id, word[left].bytes + word[right].bytes};
    word[right].bytes = 0;
    next[left] = next[right];
    if (next[left] != kEnd) previous[next[left]] = left;
    push(previous[left], left);
    push(left, next[left]);
  }
  std::erase_if(word, [](const TokenSpan& span) { return span.bytes == 0; });
}

bool Bpe::may_cut_before(const Vocabulary& vocabulary, std::string_view mark) const {
  if (options_.ignore_merges || !options_.continuing_prefix.empty() || !options_.word_suffix.empty()) return false;
  if (vocabulary.find(mark) == kNoToken) return false;
  bool clean = true;
  merges_.for_each([&](const PairMap::Merge& merge) {
    const std::string_view token = vocabulary.token(merge.id);
    size_t at = 0;
    while (token.substr(at).starts_with(mark)) at += mark.size();
    if (token.find(mark, at) != token.npos) clean = false;
  });
  return clean;
}

}  // namespace tare::text
