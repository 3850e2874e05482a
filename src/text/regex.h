#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::text {

/// Whose rules a pattern is written in. They agree on most of the syntax and differ in what a file may rely on.
enum class RegexDialect {
  kOniguruma,  // tokenizer.json: ^ and $ at every line, {n,m}+ is no possessive quantifier, \h is a hex digit
  kRust,       // tiktoken, tekken: ^ and $ at the ends of the text, {n,m}+ is possessive
};

/// A match or the text between two matches: bytes [begin,end) of the searched text.
struct RegexMatch {
  size_t begin;
  size_t end;
};

/// A compiled pattern (PCRE2 with JIT). Immutable and thread-safe. Patterns work on characters (UTF-8) with Unicode
/// classes: \s is White_Space, \d is Nd, \w is letters, marks, decimal digits and connectors, whatever PCRE2 takes them
/// for.
class Regex {
 public:
  /// Errors: a pattern that does not compile, or that uses what the dialects do not share and tare does not translate.
  static Result<Regex> compile(std::string_view pattern, RegexDialect dialect, std::string_view where);

  /// All matches in text[begin,end), left to right. Anchors and look-around see only that range. An empty match right
  /// after a match is passed over. Errors: the match limit of PCRE2 (a pattern that explodes on this text).
  Status find_all(std::string_view text, size_t begin, size_t end, std::vector<RegexMatch>& out) const;

  const std::string& pattern() const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

/// The pattern in PCRE2's own syntax. Exposed for tests.
Result<std::string> translate_regex(std::string_view pattern, RegexDialect dialect, std::string_view where);

}  // namespace tare::text
