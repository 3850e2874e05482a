#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/charsmap.h"
#include "text/tokenizer.h"

namespace tare::text {

/// Kind of a SentencePiece token; the numbers are those of the file format and of GGUF's token_type.
enum class PieceType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

/// A SentencePiece model as data, whichever container it came in.
struct SentencePieceModel {
  enum class Algorithm { kUnigram, kBpe };
  Algorithm algorithm = Algorithm::kUnigram;
  std::vector<std::string> pieces;
  std::vector<float> scores;  // one a piece
  std::vector<PieceType> types;
  std::shared_ptr<const Charsmap> charsmap;  // normalization rules; may be none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  bool byte_fallback = false;
  SpecialTokens special;
  bool add_bos = false;  // what encode(add_special) puts around
  bool add_eos = false;
  /// SentencePiece looks for user-defined symbols in the normalized text; GGUF readers and the tokenizers library in
  /// the text itself.
  bool user_defined_in_raw_text = false;
  /// Tokens that other files add, or describe anew: looked for in the text itself.
  std::vector<AddedToken> added;
  /// Control tokens that take the white space on their right with them.
  std::vector<TokenId> strip_right;
};

/// A tokenizer from such a model. Control and unknown tokens written out in a text are special tokens.
/// Errors: lists of different lengths, no or several unknown tokens, scores that are not finite, texts twice.
Result<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model, std::string_view where,
                                               std::vector<std::string> warnings = {});

/// Reads a SentencePiece .model (a protocol buffer): BPE and Unigram.
/// Errors: malformed bytes; word and character models; vertical or suffix settings that tare does not do.
Result<SentencePieceModel> read_sentencepiece_model(std::string_view bytes, std::string_view where);

/// Both in one. BOS is put in front if the model has one.
Result<Tokenizer> load_sentencepiece_model(std::string_view bytes, std::string_view where);

}  // namespace tare::text
