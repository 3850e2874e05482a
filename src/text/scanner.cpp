#include "text/scanner.h"

#include "text/unicode.h"

namespace tare::text {

namespace {

struct Known {
  std::string_view pattern;
  Scanner scanner;
};

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The patterns as they stand in files. Two spellings of the contractions match the same text, and so do possessive
// quantifiers where giving back could not help.
const Known kKnown[] = {
    {kGpt2Pattern, {.kind = Scanner::Kind::kGpt2}},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", {.kind = Scanner::Kind::kGpt2}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCl100k, .max_digits = 3}},
    {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCl100k, .max_digits = 3, .long_s = false}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCl100k, .max_digits = 1}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCl100k, .max_digits = 2}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCl100k, .max_digits = 1, .marks_in_words = true}},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCased, .max_digits = 3, .slash_after_others = true}},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {.kind = Scanner::Kind::kCased, .max_digits = 1, .contractions = false, .slash_after_others = true}},
    {"[0-9][0-9][0-9]", {.kind = Scanner::Kind::kThreeDigits}},
};

// Reads characters of a range with their classes; one object a call, so that the table pointer stays in a register.
class Reader {
 public:
  Reader(const char* text, size_t end) : text_(text), end_(end), table_(char_class_table()) {}

  struct Char {
    uint32_t classes;
    uint32_t bytes;  // 0 at the end
    char32_t value;
  };
  Char at(size_t position) const {
    if (position >= end_) return {0, 0, 0};
    const auto b = static_cast<unsigned char>(text_[position]);
    if (b < 0x80) return {table_[b], 1, b};
    const DecodedChar c = decode_char(text_, position);
    return {c.value < kClassTableSize ? table_[c.value] : char_classes(c.value), c.bytes, c.value};
  }
  /// End of the run of characters that have a bit of `any` (or none of `none`).
  size_t run(size_t position, uint32_t any) const {
    for (;;) {
      const Char c = at(position);
      if (c.bytes == 0 || !(c.classes & any)) return position;
      position += c.bytes;
    }
  }
  size_t run_without(size_t position, uint32_t none) const {
    for (;;) {
      const Char c = at(position);
      if (c.bytes == 0 || (c.classes & none)) return position;
      position += c.bytes;
    }
  }
  char byte(size_t position) const { return position < end_ ? text_[position] : '\0'; }
  size_t end() const { return end_; }

 private:
  const char* text_;
  size_t end_;
  const uint32_t* table_;
};

// \s+(?!\S)|\s+ at a white space character: the run, less its last character when something else follows.
size_t white_space(const Reader& in, size_t at) {
  size_t last = at;
  size_t position = at;
  for (;;) {
    const Reader::Char c = in.at(position);
    if (!(c.classes & kWhitespace)) break;
    last = position;
    position += c.bytes;
  }
  if (position >= in.end() || last == at) return position;
  return last;
}

// 's 't 're 've 'm 'll 'd after the apostrophe at `at`; its end, or `at` when there is none.
size_t contraction(const Reader& in, size_t at, bool any_case, bool long_s) {
  const auto fold = [&](char c) { return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char first = fold(in.byte(at + 1));
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  // U+017F, the long s, is an s under case folding.
  if (long_s && in.byte(at + 1) == '\xC5' && in.byte(at + 2) == '\xBF') return at + 3;
  const char second = fold(in.byte(at + 2));
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  return at;
}

size_t scan_gpt2(const Reader& in, size_t at) {
  Reader::Char c = in.at(at);
  if (c.value == '\'') {
    const size_t end = contraction(in, at, false, false);
    if (end != at) return end;
  }
  size_t start = at;
  if (c.value == ' ') {
    const Reader::Char next = in.at(at + 1);
    if (next.bytes == 0 || (next.classes & kWhitespace)) return white_space(in, at);
    start = at + 1;
    c = next;
  } else if (c.classes & kWhitespace) {
    return white_space(in, at);
  }
  if (c.classes & kLetter) return in.run(start, kLetter);
  if (c.classes & kNumber) return in.run(start, kNumber);
  return in.run_without(start, kLetter | kNumber | kWhitespace);
}

// What kCl100k and kCased share: numbers, others with newlines, white space.
size_t scan_rest(const Reader& in, size_t at, const Scanner& scanner, uint32_t not_others) {
  const Reader::Char c = in.at(at);
  if (c.classes & kNumber) {
    size_t end = at + c.bytes;
    for (int digits = 1; digits < scanner.max_digits; ++digits) {
      const Reader::Char next = in.at(end);
      if (!(next.classes & kNumber)) break;
      end += next.bytes;
    }
    return end;
  }
  size_t start = at;
  Reader::Char other = c;
  if (c.value == ' ') {
    start = at + 1;
    other = in.at(start);
  }
  if (other.bytes != 0 && !(other.classes & not_others)) {
    size_t end = in.run_without(start, not_others);
    while (in.byte(end) == '\r' || in.byte(end) == '\n' || (scanner.slash_after_others && in.byte(end) == '/')) ++end;
    return end;
  }
  // White space from here on; up to and with the last newline of the run, if it has one.
  size_t position = at;
  size_t after_newline = 0;
  for (;;) {
    const Reader::Char space = in.at(position);
    if (!(space.classes & kWhitespace)) break;
    position += space.bytes;
    if (space.classes & kNewline) after_newline = position;
  }
  if (after_newline != 0) return after_newline;
  if (position > at) return white_space(in, at);
  // Not white space and not any of the others: a mark where marks belong to words but none was found. One character.
  return at + c.bytes;
}

size_t scan_cl100k(const Reader& in, size_t at, const Scanner& scanner) {
  const uint32_t word = scanner.marks_in_words ? kLetter | kMark : static_cast<uint32_t>(kLetter);
  const Reader::Char c = in.at(at);
  if (c.value == '\'' && scanner.contractions) {
    const size_t end = contraction(in, at, true, scanner.long_s);
    if (end != at) return end;
  }
  if (c.classes & word) return in.run(at, word);
  if (!(c.classes & (kNewline | kNumber))) {
    const size_t end = in.run(at + c.bytes, word);
    if (end != at + c.bytes) return end;
  }
  return scan_rest(in, at, scanner, kWhitespace | kNumber | word);
}

size_t scan_cased(const Reader& in, size_t at, const Scanner& scanner) {
  constexpr uint32_t kUpperLike = kUpper | kTitle | kModifier | kOtherLetter | kMark;
  constexpr uint32_t kLowerLike = kLower | kModifier | kOtherLetter | kMark;
  const auto suffix = [&](size_t end) {
    return scanner.contractions && in.byte(end) == '\'' ? contraction(in, end, true, scanner.long_s) : end;
  };
  // Capitals* small+ from `start`, or `start` when it does not match.
  const auto capitals_then_small = [&](size_t start) {
    size_t position = start;
    size_t after_last_small = start;  // end of the last character of the capitals that is also small-like
    for (;;) {
      const Reader::Char c = in.at(position);
      if (!(c.classes & kUpperLike)) break;
      position += c.bytes;
      if (c.classes & kLowerLike) after_last_small = position;
    }
    const size_t end = in.run(position, kLowerLike);
    return end > position ? end : after_last_small;
  };
  const Reader::Char c = in.at(at);
  const bool prefix = !(c.classes & (kNewline | kLetter | kNumber));
  if (prefix) {
    const size_t start = at + c.bytes;
    const size_t end = capitals_then_small(start);
    if (end != start) return suffix(end);
  }
  {
    const size_t end = capitals_then_small(at);
    if (end != at) return suffix(end);
  }
  for (const bool with_prefix : {true, false}) {
    if (with_prefix && !prefix) continue;
    const size_t start = with_prefix ? at + c.bytes : at;
    const size_t end = in.run(start, kUpperLike);
    if (end != start) return suffix(in.run(end, kLowerLike));
  }
  return scan_rest(in, at, scanner, kWhitespace | kNumber | kLetter);
}

}  // namespace

std::string escaped_newlines(std::string_view pattern) {
  std::string out;
  for (const char c : pattern) {
    if (c == '\r') {
      out += "\\r";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<Scanner> find_scanner(std::string_view given) {
  const std::string pattern = escaped_newlines(given);
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.scanner;
  }
  return std::nullopt;
}

std::vector<std::string_view> scanner_patterns() {
  std::vector<std::string_view> patterns;
  for (const Known& known : kKnown) patterns.push_back(known.pattern);
  return patterns;
}

size_t scan(const Scanner& scanner, const char* text, size_t at, size_t end) {
  const Reader in(text, end);
  switch (scanner.kind) {
    case Scanner::Kind::kGpt2:
      return scan_gpt2(in, at);
    case Scanner::Kind::kCl100k:
      return scan_cl100k(in, at, scanner);
    case Scanner::Kind::kCased:
      return scan_cased(in, at, scanner);
    case Scanner::Kind::kThreeDigits: {
      const auto digit = [&](size_t i) { return in.byte(i) >= '0' && in.byte(i) <= '9'; };
      return digit(at) && digit(at + 1) && digit(at + 2) ? at + 3 : at;
    }
  }
  return at;
}

}  // namespace tare::text
