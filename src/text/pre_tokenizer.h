#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/aligned_text.h"
#include "text/regex.h"
#include "text/scanner.h"

namespace tare::text {

/// What becomes of the matches of a splitting pattern:
/// removed; pieces of their own; joined to the piece before or after; runs of matches as one piece.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kNever, kFirst, kAlways };

/// One step of pre-tokenization. Sequences are flat lists of steps.
struct PreTokenizerStep {
  enum class Kind {
    kSplit,   // by scanner, regex or literal
    kDigits,  // numeric characters, each alone or in runs
    kPunctuation,
    kWhitespace,  // \w+|[^\w\s]+
    kWhitespaceSplit,
    kDelimiter,    // one character (literal), removed
    kFixedLength,  // length characters
    kBert,         // white space removed, punctuation isolated
    kByteLevel,    // optional prefix space, optional GPT-2 pattern, then bytes to characters
    kMetaspace,    // spaces to `literal`, optional prefix, optional split
  };
  Kind kind = Kind::kSplit;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  std::optional<Scanner> scanner;
  std::shared_ptr<const Regex> regex;
  std::string literal;
  bool individual_digits = false;
  size_t length = 5;
  bool add_prefix_space = false;                   // kByteLevel
  bool use_regex = true;                           // kByteLevel
  PrependScheme prepend = PrependScheme::kAlways;  // kMetaspace
  bool split = true;                               // kMetaspace
};

using PreTokenizer = std::vector<PreTokenizerStep>;

/// Whether the step only cuts: it changes no text.
bool only_splits(const PreTokenizerStep& step);

/// Cuts the pieces of `text` that are not tokens; `out` gets the new list. The step must be one that only splits.
/// Errors: a regular expression that gives up.
Status split_pieces(const PreTokenizerStep& step, std::string_view text, const std::vector<Piece>& pieces,
                    std::vector<Piece>& out);

/// All steps on aligned text. Empty pieces are left out.
Status pre_tokenize(const PreTokenizer& steps, AlignedText& text, std::vector<Piece>& pieces);

}  // namespace tare::text
