#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace tare::text {

/// Bytes [begin,end) of the text that the user gave.
struct ByteRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

/// A part of an AlignedText: bytes [begin,end) of it; a token if an added token was found there.
struct Piece {
  uint32_t begin = 0;
  uint32_t end = 0;
  TokenId token = kNoToken;
};

/// One character of a changed text, as normalizers produce them:
/// change = 0 stands for the next old character; > 0 is inserted after the one before; -n stands for the next old
/// character and swallows n more.
struct ChangedChar {
  char32_t value;
  int change;
};

/// Text under normalization, with the range of the original text that each of its bytes came from.
struct AlignedText {
  std::string text;
  std::vector<ByteRange> source;  // one per byte of text

  void append(std::string_view bytes, ByteRange from) {
    text.append(bytes);
    source.insert(source.end(), bytes.size(), from);
  }
  /// Appends a part of another text with its alignment.
  void append(const AlignedText& other, size_t begin, size_t end) {
    text.append(other.text, begin, end - begin);
    source.insert(source.end(), other.source.begin() + begin, other.source.begin() + end);
  }
  /// Appends original text: each character comes from itself. `offset` is where `original` starts in the user's text.
  void append_original(std::string_view original, size_t offset);

  /// Replaces the whole text. The first `dropped_first` old characters leave nothing behind. `base` is where this text
  /// starts in the user's text, the source of characters inserted before anything else.
  void transform(const std::vector<ChangedChar>& changed, size_t dropped_first, uint32_t base);

  /// Replaces the ranges [begin,end) (ascending, apart) by `content`; its source is that of the last byte before `end`.
  void replace(const std::vector<std::pair<size_t, size_t>>& ranges, std::string_view content);

  /// Source of the bytes [begin,end) (not empty).
  ByteRange source_of(size_t begin, size_t end) const { return {source[begin].begin, source[end - 1].end}; }
};

}  // namespace tare::text
