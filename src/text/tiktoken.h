#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::text {

/// What a rank file does not say itself.
struct TiktokenSpec {
  std::string name;     // for messages
  std::string pattern;  // splits the text (Rust regex syntax)
  bool nfc = false;     // text is brought to NFC first
  /// Special tokens with their ids, at or above the number of ranks. Ids between them that no token has stay unused.
  std::vector<std::pair<std::string, TokenId>> special_tokens;
  SpecialTokens roles;
  bool add_bos = false;
};

/// The spec of a rank file that models ship, told by its number of ranks: llama3 (128000), llama4 (200000), qwen
/// (151643), cl100k (100256), o200k (199998), r50k (50256). Errors: a number that is none of these.
Result<TiktokenSpec> known_tiktoken_spec(size_t ranks, std::string_view where);

/// Number of lines of a rank file; 0 if it does not look like one.
size_t count_tiktoken_ranks(std::string_view bytes);

/// A tokenizer from a rank file: lines of base64 bytes and a rank. Neighbours whose joined bytes have the lowest rank
/// join first; a piece that has a rank is one token.
/// Errors: malformed lines; ranks with holes or twice; the same bytes twice; a byte without rank; special ids taken.
Result<Tokenizer> load_tiktoken(std::string_view bytes, const TiktokenSpec& spec, std::string_view where);

/// A tokenizer from tekken.json (Mistral): the pattern, tokens in base64 and the number of special tokens in front are
/// in it.
Result<Tokenizer> load_tekken(std::string_view json_text, std::string_view where);

}  // namespace tare::text
