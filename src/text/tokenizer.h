#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/aligned_text.h"
#include "text/vocabulary.h"

namespace tare::text {

struct EncodeOptions {
  bool add_special = true;        // what the tokenizer puts around a text by itself (BOS, EOS)
  bool specials_as_text = false;  // control tokens written out in the text stay text: for text that users write
};

struct Encoding {
  std::vector<TokenId> ids;
  /// One range of the text for each id, of whole characters; several tokens of one character share its range; tokens
  /// that the tokenizer added have [0,0).
  std::vector<ByteRange> offsets;
  /// Bytes of the text that have no token and no unknown token stands for: they are missing from the ids.
  size_t dropped_bytes = 0;
};

/// Ids with a role. Absent ones are not known from the files given.
struct SpecialTokens {
  std::optional<TokenId> bos, eos, unknown, padding, end_of_turn, mask;
};

struct TokenizerState;

/// Text to token ids and back. Immutable, cheap to copy (copies share), safe to use from any thread.
/// Made by the loaders: load_tokenizer_json, load_sentencepiece_model, load_tiktoken, load_gguf_vocabulary.
class Tokenizer {
 public:
  /// Errors: text that is not UTF-8 or 4 GiB and more; a pattern that gives up on it.
  Result<Encoding> encode(std::string_view text, EncodeOptions options = {}) const;

  /// Errors: an id out of range.
  Result<std::string> decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// The text of a token as it stands in the vocabulary (not decoded). Errors: an id out of range.
  Result<std::string_view> token_text(TokenId id) const;
  /// The token with this text, if there is one (added tokens included).
  std::optional<TokenId> find_token(std::string_view text) const;

  /// Ids are below this. A model's logits may be wider (padding) or narrower.
  size_t vocab_size() const;
  bool is_special(TokenId id) const;
  const SpecialTokens& special() const;
  /// Whether encode puts the BOS token in front (add_special).
  bool adds_bos() const;

  /// Which file or vocabulary this was read from.
  const std::string& source() const;
  /// What the files said that did not fit together, one line each.
  const std::vector<std::string>& warnings() const;

  /// For the loaders of this room.
  explicit Tokenizer(std::shared_ptr<const TokenizerState> state) : state_(std::move(state)) {}
  const TokenizerState& state() const { return *state_; }

 private:
  std::shared_ptr<const TokenizerState> state_;
};

/// Turns a stream of ids into text piece by piece; no piece ends inside a character.
/// Each token's bytes are appended to what is held back; the longest prefix that is no incomplete UTF-8 sequence comes
/// out, ill-formed bytes as one U+FFFD per maximal subpart. Not thread-safe; one object a stream.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(Tokenizer tokenizer, bool skip_special = false);
  /// Text that is complete after this token. Errors: an id out of range.
  Result<std::string> push(TokenId id);
  /// What is still held back, as text. The object starts over.
  std::string finish();

 private:
  std::string release(bool all);
  Result<std::string> push_window(TokenId id);

  Tokenizer tokenizer_;
  bool skip_special_;
  bool started_ = false;
  size_t strip_left_ = 0;     // leading characters still to drop
  std::string pending_;       // bytes held back
  std::vector<TokenId> ids_;  // decoders without per-token rules: the ids since the last clean cut
  size_t shown_ = 0;          // ids of ids_ whose text is out
};

}  // namespace tare::text
