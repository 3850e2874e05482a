#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::text {

/// SentencePiece's compiled normalization rules: a double-array trie (darts-clone) from byte strings to offsets in a
/// block of zero-terminated replacements.
/// Layout: |u32 little-endian: bytes of the trie|trie: u32 units|replacements|. Unit: bits 0..7 label (bit 31 clear) or
/// bits 0..30 value (bit 31 set); bit 8 has a leaf; bit 9 scales the offset in bits 10..30 by 256.
class Charsmap {
 public:
  /// Errors: sizes that disagree, replacements that are not terminated or not UTF-8, a trie without a root.
  static Result<Charsmap> create(std::string_view blob, std::string_view where);

  struct Match {
    size_t bytes = 0;  // 0: no rule
    std::string_view replacement;
  };
  /// The longest rule that text[at..] starts with (SentencePiece).
  Match longest(std::string_view text, size_t at) const;
  /// The shortest one inside `chunk`; what the tokenizers library replaces a whole chunk by.
  Match shortest(std::string_view chunk) const;
  /// Whether an ASCII character that is a grapheme cluster of its own has no rule (false for \r, which may not be one).
  bool is_plain(unsigned char c) const { return c < 128 && plain_[c]; }

 private:
  template <class Visit>
  void prefixes(std::string_view text, size_t at, Visit visit) const;
  std::string_view replacement(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::array<bool, 128> plain_{};
};

}  // namespace tare::text
