#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/aligned_text.h"
#include "text/normalizer.h"
#include "text/vocabulary.h"

namespace tare::text {

/// A token that is found in the text before the model sees it.
struct AddedToken {
  TokenId id = kNoToken;
  std::string content;
  bool special = false;      // a control token: left out by decode(skip_special), text only on demand of the caller
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space on its left
  bool rstrip = false;
  bool normalized = false;          // looked for in the normalized text, in its normalized form
  bool already_normalized = false;  // the content is that form
};

/// Finder of added tokens: at the leftmost place where one matches, the longest. Immutable and thread-safe.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Errors: an empty content, a normalizer that fails on one.
  static Result<AddedTokens> create(std::vector<AddedToken> tokens, const Normalizer& normalizer,
                                    std::string_view where);

  bool any_raw() const { return !raw_.empty(); }
  bool any_normalized() const { return !normalized_.empty(); }
  /// Whether a token that is looked for in normalized text begins with this byte.
  bool starts_normalized(char first) const { return normalized_.starts(first); }

  /// Cuts text[begin,end) around the tokens that are looked for in raw (or in normalized) text. Special tokens stay
  /// text if `specials_as_text`. Nothing is empty; no token means one piece.
  void find(std::string_view text, size_t begin, size_t end, bool normalized, bool specials_as_text,
            std::vector<Piece>& out) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  /// The text that stands for the token when decoding: the normalized form where it has one, as the tokenizers library
  /// does since 0.23. decode_texts()[i] belongs to tokens()[i].
  const std::vector<std::string>& decode_texts() const { return decode_texts_; }

 private:
  std::vector<AddedToken> tokens_;
  std::vector<std::string> decode_texts_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace tare::text
