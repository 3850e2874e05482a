#include "text/charsmap.h"

#include <fmt/format.h>

#include "text/unicode.h"

namespace tare::text {

Result<Charsmap> Charsmap::create(std::string_view blob, std::string_view where) {
  const auto u32 = [&](size_t at) {
    const auto* b = reinterpret_cast<const unsigned char*>(blob.data()) + at;
    return static_cast<uint32_t>(b[0] | b[1] << 8 | b[2] << 16) | static_cast<uint32_t>(b[3]) << 24;
  };
  if (blob.size() < 4) {
    return invalid_input(
        "precompiled charsmap too short",
        {.where = std::string(where), .expected = "at least 4 bytes", .found = fmt::format("{}", blob.size())});
  }
  const size_t trie_bytes = u32(0);
  if (trie_bytes > blob.size() - 4 || trie_bytes % 4 != 0 || trie_bytes == 0) {
    return invalid_input("precompiled charsmap has a wrong trie size",
                         {.where = std::string(where),
                          .expected = fmt::format("a multiple of 4, at most {}", blob.size() - 4),
                          .found = fmt::format("{}", trie_bytes)});
  }
  Charsmap out;
  out.units_.reserve(trie_bytes / 4);
  for (size_t at = 4; at < 4 + trie_bytes; at += 4) out.units_.push_back(u32(at));
  out.replacements_ = std::string(blob.substr(4 + trie_bytes));
  if (!out.replacements_.empty() && out.replacements_.back() != '\0') {
    return invalid_input("precompiled charsmap is cut off",
                         {.where = std::string(where), .expected = "replacements that end in a zero byte"});
  }
  if (const auto bad = find_invalid_utf8(out.replacements_)) {
    return invalid_input("precompiled charsmap holds text that is not UTF-8",
                         {.where = std::string(where), .found = fmt::format("byte {} of the replacements", *bad)});
  }
  // Every leaf must name a place in the replacements where one starts.
  for (const uint32_t unit : out.units_) {
    if (!(unit >> 31)) continue;
    const uint32_t offset = unit & 0x7FFFFFFF;
    if (offset >= out.replacements_.size() || is_continuation(out.replacements_[offset])) {
      return invalid_input("precompiled charsmap points outside its replacements",
                           {.where = std::string(where),
                            .expected = fmt::format("an offset below {}", out.replacements_.size()),
                            .found = fmt::format("{}", offset)});
    }
  }
  for (size_t c = 0; c < out.plain_.size(); ++c) {
    const char byte = static_cast<char>(c);
    out.plain_[c] = byte != '\r' && out.shortest(std::string_view(&byte, 1)).bytes == 0;
  }
  return out;
}

std::string_view Charsmap::replacement(uint32_t offset) const {
  if (offset >= replacements_.size()) return {};
  return std::string_view(replacements_.c_str() + offset);
}

template <class Visit>
void Charsmap::prefixes(std::string_view text, size_t at, Visit visit) const {
  const auto offset_of = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  size_t node = offset_of(units_[0]);
  for (size_t i = at; i < text.size(); ++i) {
    const auto label = static_cast<unsigned char>(text[i]);
    if (label == 0) return;
    node ^= label;
    if (node >= units_.size()) return;
    const uint32_t unit = units_[node];
    if ((unit & (1u << 31 | 0xFFu)) != label) return;
    node ^= offset_of(unit);
    if (unit >> 8 & 1) {
      if (node >= units_.size()) return;
      if (!visit(i + 1 - at, units_[node] & 0x7FFFFFFF)) return;
    }
  }
}

Charsmap::Match Charsmap::longest(std::string_view text, size_t at) const {
  Match best;
  prefixes(text, at, [&](size_t bytes, uint32_t offset) {
    best = {bytes, replacement(offset)};
    return true;
  });
  return best;
}

Charsmap::Match Charsmap::shortest(std::string_view chunk) const {
  Match best;
  prefixes(chunk, 0, [&](size_t, uint32_t offset) {
    best = {chunk.size(), replacement(offset)};
    return false;
  });
  return best;
}

}  // namespace tare::text
