#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/word_memory.h"

namespace tare::text {

/// How a stream of tokens becomes bytes one token at a time.
struct StreamRule {
  enum class Kind { kByteLevel, kPieces, kMetaspace, kSpaced, kWindow };
  Kind kind = Kind::kWindow;
  std::vector<DecoderStep> replace;  // kPieces: literal replacements, in order
  bool byte_fallback = false;        // kPieces, kMetaspace
  std::string strip;                 // kPieces: character dropped at the start of the output ...
  size_t strip_start = 0;            // ... up to so many times
};

/// What loaders give: each part as data.
struct TokenizerParts {
  Vocabulary vocabulary;  // of the model
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::variant<Bpe, Unigram> model;
  PostProcessor post_processor;
  Decoder decoder;
  SpecialTokens special;
  std::string source;
  std::vector<std::string> warnings;
  bool unnamed_ids_are_unused = false;  // else an id without a token is a hole
};

/// Words of a space and printed ASCII that are one piece of the model whatever they say: they need no pipeline.
struct PlainWords {
  bool letters_only = false;
  std::array<bool, 256> first{};  // by byte: what may follow the space; none: there are no such words
  std::array<bool, 256> other{};  // and what may follow that
  std::string mark;               // what the space becomes; a model that works on the text itself leaves it
  uint32_t mark_source = 0;       // byte of the word that the mark comes from

  bool holds(std::string_view word) const {
    bool all = word.size() > 1 && word[0] == ' ' && first[static_cast<unsigned char>(word[1])];
    for (size_t i = 2; i < word.size() && all; ++i) all = other[static_cast<unsigned char>(word[i])];
    return all;
  }
};

/// Everything a Tokenizer knows. Filled once by make_tokenizer.
struct TokenizerState {
  TokenizerParts parts;
  AddedTokens added;
  size_t vocab_size = 0;
  std::vector<std::string> late_texts;  // ids from vocabulary.size() on
  std::unordered_map<std::string, TokenId> added_ids;
  std::vector<bool> is_special;                           // by id
  std::vector<bool> is_skipped;                           // by id: decode(skip_special) leaves it out
  std::vector<bool> is_hole;                              // by id: no token has it; decoding leaves it out
  std::unordered_map<TokenId, std::string> decode_texts;  // where decoding reads another text than token_text
  StreamRule stream;

  // Byte-level models whose pre-tokenizer only cuts need no alignment: they work on the text itself.
  bool direct = false;
  PreTokenizer direct_steps;       // before the bytes become characters
  PreTokenizer direct_byte_steps;  // after that
  // Text may be cut before this mark when it follows something else (SentencePiece BPE); empty: it may not.
  std::string cut_mark;
  // Whether the text itself may be cut before a single space between two plain characters (text/word_cuts.h), each part
  // going through the whole pipeline alone; the parts behind the first with `continuation` instead of the normalizer.
  bool cuts_into_words = false;
  Normalizer continuation;
  PlainWords plain_words;  // of those behind the first

  // What calls remember of words: changes no result.
  mutable WordMemory memory;

  std::string_view text_of(TokenId id) const {
    const auto model_size = static_cast<TokenId>(parts.vocabulary.size());
    return id < model_size ? parts.vocabulary.token(id) : std::string_view(late_texts[id - model_size]);
  }
  std::string decode_text_of(TokenId id) const {
    const auto found = decode_texts.find(id);
    return found != decode_texts.end() ? found->second : std::string(text_of(id));
  }
};

/// Ids may have holes, which are no tokens, but no more of them than tokens (and a few): a file that names one huge id
/// must not make us allocate for it.
Status check_room(int64_t highest_id, size_t tokens, std::string_view where);

/// Checks that the parts fit (no text twice, templates inside the vocabulary) and prepares the fast paths. Holes in the
/// ids are told in a warning.
Result<Tokenizer> make_tokenizer(TokenizerParts parts, std::string_view where);

/// The same tokenizer with other roles and more warnings.
Tokenizer with_roles(const Tokenizer& tokenizer, const SpecialTokens& special, std::vector<std::string> warnings);

}  // namespace tare::text
