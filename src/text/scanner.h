#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tare::text {

/// A hand-written form of a pre-tokenizer pattern that real models share. Each of these patterns matches every
/// character, so its matches follow each other without gaps. A test compares each with the pattern itself under PCRE2.
struct Scanner {
  enum class Kind {
    kGpt2,         // contractions, " ?letters", " ?numbers", " ?others", white space
    kCl100k,       // any one character before letters, short runs of numbers, newlines apart (llama3, qwen, ...)
    kCased,        // as kCl100k, words also end where capitals start (o200k, tekken)
    kThreeDigits,  // [0-9][0-9][0-9]; the one that leaves gaps
  };
  Kind kind = Kind::kGpt2;
  int max_digits = 3;           // \p{N}{1,max_digits}
  bool marks_in_words = false;  // [\p{L}\p{M}]+ and [^\s\p{L}\p{M}\p{N}]+
  bool contractions = true;
  bool long_s = true;               // U+017F is an s in contractions: (?i:'s) and not '[sS]
  bool slash_after_others = false;  // [\r\n/]* after others
};

/// A pattern with its newlines written as \r and \n: some files hold the characters themselves.
std::string escaped_newlines(std::string_view pattern);

/// The scanner of a pattern, if there is one.
std::optional<Scanner> find_scanner(std::string_view pattern);

/// The patterns with scanners (for tests).
std::vector<std::string_view> scanner_patterns();

/// End of the match at `at` (< end) in well-formed text; what lies at `end` and beyond is not seen.
/// kThreeDigits: `at` itself when there is no match.
size_t scan(const Scanner& scanner, const char* text, size_t at, size_t end);

}  // namespace tare::text
