#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/aligned_text.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/vocabulary.h"

namespace tare::text {

/// One step of normalization. Sequences are flat lists of steps.
struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kPrepend,       // content, unless the text is empty
    kReplace,       // each `pattern` or match of `regex` by content
    kStrip,         // white space at the left and right
    kStripAccents,  // combining marks
    kLowercase,
    kNmt,  // control characters out, odd spaces to spaces
    kBert,
    kPrecompiled,    // charsmap, by grapheme cluster (tokenizers library)
    kByteLevel,      // bytes to characters
    kSentencePiece,  // charsmap by longest rule, spaces (SentencePiece's own normalizer)
  };
  Kind kind = Kind::kNfc;
  std::string pattern;  // kReplace: literal text, when there is no regex
  std::string content;  // kPrepend, kReplace
  std::shared_ptr<const Regex> regex;
  std::shared_ptr<const Charsmap> charsmap;    // kPrecompiled; kSentencePiece, may be none
  std::shared_ptr<const Trie> protected_text;  // kSentencePiece: user-defined symbols, which rules leave alone
  bool strip_left = true;
  bool strip_right = true;
  bool bert_clean_text = true;
  bool bert_chinese = true;
  bool bert_strip_accents = false;
  bool bert_lowercase = false;
  bool add_dummy_prefix = true;           // kSentencePiece
  bool remove_extra_whitespaces = false;  // kSentencePiece
  bool escape_whitespaces = true;         // kSentencePiece: spaces become U+2581
  bool whitespace_as_suffix = false;      // kSentencePiece
};

using Normalizer = std::vector<NormalizerStep>;

/// Whether the normalizer leaves this text as it is (a cheap test that may say no too often).
bool leaves_unchanged(const Normalizer& normalizer, std::string_view text);

/// Normalizes a text that starts at byte `base` of the user's text.
/// Errors: a regular expression that gives up.
Status normalize(const Normalizer& normalizer, AlignedText& text, uint32_t base);

/// The same for text alone.
Result<std::string> normalize_text(const Normalizer& normalizer, std::string_view text);

}  // namespace tare::text
