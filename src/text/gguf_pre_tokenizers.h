#pragma once

#include <span>
#include <string_view>

namespace tare::text {

/// What a name in tokenizer.ggml.pre stands for: the pipeline of the original tokenizer.
struct GgufPreTokenizer {
  enum class Step {
    kSplit,        // pattern, each match a piece
    kDigits,       // each numeric character alone
    kGpt2,         // the GPT-2 pattern
    kPunctuation,  // runs of punctuation apart
    kByteDigits,   // runs of numeric characters after bytes became characters (falcon)
    kThreeDigits,  // [0-9][0-9][0-9] after that
  };
  struct Part {
    Step step;
    std::string_view pattern = {};
  };
  std::string_view name;
  std::span<const Part> parts;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;         // where add_bos_token is not in the file
  bool pieces_of_text = false;  // SentencePiece-like: U+2581 for spaces, characters instead of bytes, byte fallback
};

/// The entry of a name, or nullptr.
const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name);
std::span<const GgufPreTokenizer> gguf_pre_tokenizers();

}  // namespace tare::text
