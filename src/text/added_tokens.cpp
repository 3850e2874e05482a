#include "text/added_tokens.h"

#include <fmt/format.h>

#include "text/unicode.h"

namespace tare::text {

namespace {

// \w of the tokenizers library here: letters, marks, decimal digits, connectors and joiners.
bool is_word(char32_t c) {
  constexpr uint32_t kWord = kLetter | kMark | kDecimal;
  return (char_classes(c) & kWord) || c == '_' || c == 0x203F || c == 0x2040 || c == 0x2054 || c == 0xFE33 ||
         c == 0xFE34 || (c >= 0xFE4D && c <= 0xFE4F) || c == 0xFF3F || c == 0x200C || c == 0x200D;
}

size_t char_before(std::string_view text, size_t at) {
  --at;
  while (at > 0 && is_continuation(text[at])) --at;
  return at;
}

bool is_space_at(std::string_view text, size_t at) {
  return char_classes(decode_char(text.data(), at).value) & kWhitespace;
}

}  // namespace

Result<AddedTokens> AddedTokens::create(std::vector<AddedToken> tokens, const Normalizer& normalizer,
                                        std::string_view where) {
  AddedTokens out;
  out.tokens_ = std::move(tokens);
  for (const AddedToken& token : out.tokens_) {
    if (token.content.empty()) {
      return invalid_input("an added token is empty",
                           {.where = std::string(where), .found = fmt::format("id {}", token.id)});
    }
    if (token.normalized && !token.already_normalized && !normalizer.empty()) {
      TARE_ASSIGN(std::string text, normalize_text(normalizer, token.content));
      out.decode_texts_.push_back(std::move(text));
    } else {
      out.decode_texts_.push_back(token.content);
    }
  }
  std::vector<Trie::Entry> raw;
  std::vector<Trie::Entry> normalized;
  for (size_t i = 0; i < out.tokens_.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (out.tokens_[i].normalized) {
      normalized.push_back({out.decode_texts_[i], index});
    } else {
      raw.push_back({out.tokens_[i].content, index});
    }
  }
  out.raw_ = Trie(std::move(raw));
  out.normalized_ = Trie(std::move(normalized));
  return out;
}

void AddedTokens::find(std::string_view text, size_t begin, size_t end, bool normalized, bool specials_as_text,
                       std::vector<Piece>& out) const {
  const Trie& trie = normalized ? normalized_ : raw_;
  const std::string_view here = text.substr(0, end);
  const auto put = [&](size_t from, size_t to, TokenId token) {
    if (from < to) out.push_back({static_cast<uint32_t>(from), static_cast<uint32_t>(to), token});
  };
  size_t start = begin;  // what comes before is done
  if (!trie.empty()) {
    for (size_t at = begin; at < end;) {
      if (!trie.starts(here[at])) {
        ++at;
        continue;
      }
      const Trie::Match match = trie.longest(here, at);
      if (match.bytes == 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[match.value];
      size_t first = at;
      size_t last = at + match.bytes;
      at = last;
      if (specials_as_text && token.special) continue;
      if (token.single_word) {
        const bool left = first == begin || !is_word(decode_char(here.data(), char_before(here, first)).value);
        const bool right = last == end || !is_word(decode_char(here.data(), last).value);
        if (!left || !right) continue;
      }
      if (token.lstrip) {
        while (first > start) {
          const size_t before = char_before(here, first);
          if (!is_space_at(here, before)) break;
          first = before;
        }
      }
      if (token.rstrip) {
        while (last < end && is_space_at(here, last)) last += char_bytes(here[last]);
      }
      // A match inside the white space that the one before it took is no match of its own any more, but the library
      // still reports the token; its range is what is left.
      if (first < start) first = start;
      put(start, first, kNoToken);
      out.push_back({static_cast<uint32_t>(first), static_cast<uint32_t>(std::max(first, last)), token.id});
      start = std::max(start, last);
    }
  }
  put(start, end, kNoToken);
}

}  // namespace tare::text
