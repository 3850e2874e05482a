#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tare::text {

/// Properties of a code point, as bits. The level is Unicode 16 (that of the regular expressions of the tokenizers
/// library 0.23), built from utf8proc plus a short table of what came later.
enum CharClass : uint32_t {
  kLetter = 1 << 0,             // L
  kMark = 1 << 1,               // M
  kNumber = 1 << 2,             // N
  kPunctuation = 1 << 3,        // P
  kSymbol = 1 << 4,             // S
  kWhitespace = 1 << 5,         // White_Space
  kUpper = 1 << 6,              // Lu
  kTitle = 1 << 7,              // Lt
  kLower = 1 << 8,              // Ll
  kModifier = 1 << 9,           // Lm
  kOtherLetter = 1 << 10,       // Lo
  kDecimal = 1 << 11,           // Nd
  kNumericOfDigits = 1 << 12,   // what the Digits pre-tokenizer takes: N of Unicode 17
  kSplitPunctuation = 1 << 13,  // what the Punctuation pre-tokenizer takes: ASCII punctuation and P of Unicode 8
  kNormalizes = 1 << 14,        // may change under NFC, alone or with neighbours
  kNewline = 1 << 15,           // \r \n
};

/// Class bits of a code point (0 for unassigned ones). Thread-safe.
uint32_t char_classes(char32_t c);

/// Table of the classes of U+0000..U+1FFFF, for inner loops; above it `char_classes` decides.
inline constexpr char32_t kClassTableSize = 0x20000;
const uint32_t* char_class_table();

struct DecodedChar {
  char32_t value;
  uint32_t bytes;
};

/// The character that starts at text[at]; text must be well-formed UTF-8 and at < text.size().
inline DecodedChar decode_char(const char* text, size_t at) {
  const auto* s = reinterpret_cast<const unsigned char*>(text) + at;
  if (s[0] < 0x80) return {s[0], 1};
  if (s[0] < 0xE0) return {static_cast<char32_t>((s[0] & 0x1F) << 6 | (s[1] & 0x3F)), 2};
  if (s[0] < 0xF0) return {static_cast<char32_t>((s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F)), 3};
  return {static_cast<char32_t>((s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F)), 4};
}

/// Bytes of a character from its first byte (well-formed text).
inline uint32_t char_bytes(char first) {
  const auto b = static_cast<unsigned char>(first);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

inline bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

void append_utf8(std::string& out, char32_t c);

/// Position of the first byte that is not part of well-formed UTF-8, or nothing.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// How far a byte string is UTF-8: `valid` bytes that are whole characters, then either nothing, or an ill-formed
/// maximal subpart of `bad` bytes, or (`incomplete`) a proper prefix of a character at the very end.
struct Utf8Scan {
  size_t valid = 0;
  size_t bad = 0;
  bool incomplete = false;
};
Utf8Scan scan_utf8(std::string_view bytes);

/// Bytes as text: ill-formed bytes become one U+FFFD per maximal subpart (Unicode 16, section 3.9, U+FFFD
/// substitution).
std::string utf8_lossy(std::string_view bytes);

/// Lower case of a code point, one or (U+0130) two code points.
void append_lowercase(std::u32string& out, char32_t c);

/// Byte-level alphabet of GPT-2: every byte has a printable character of one or two UTF-8 bytes.
char32_t byte_to_char(uint8_t byte);
/// The byte of a character of that alphabet, or -1.
int char_to_byte(char32_t c);

}  // namespace tare::text
