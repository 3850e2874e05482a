#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::text {

/// The tokenizer of a GGUF file as its metadata says it (keys tokenizer.ggml.*). Absent keys stay empty.
struct GgufVocabulary {
  std::string model;               // llama (SentencePiece BPE), gpt2 (byte-level BPE), t5 (Unigram), gemma4
  std::optional<std::string> pre;  // name of the pre-tokenizer of byte-level models
  std::vector<std::string> tokens;
  std::vector<float> scores;        // SentencePiece and Unigram: one a token
  std::vector<int32_t> token_type;  // 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte; may be empty
  std::vector<std::string> merges;  // "left right"
  bool has_merges = false;          // the key is there, if only with an empty list: every character is a piece
  std::optional<int64_t> bos_id, eos_id, unknown_id, padding_id, eot_id, mask_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string precompiled_charsmap;  // bytes
  std::string name;                  // general.name: some models need a rule that the file does not state
};

/// A tokenizer from it.
/// Errors: an unknown model or pre-tokenizer name (never guessed); lists of different lengths; ids out of range; all
/// that the other loaders refuse.
Result<Tokenizer> load_gguf_vocabulary(const GgufVocabulary& vocabulary, std::string_view where);

/// Names of the pre-tokenizers that load_gguf_vocabulary knows.
std::vector<std::string_view> known_gguf_pre_tokenizers();

}  // namespace tare::text
