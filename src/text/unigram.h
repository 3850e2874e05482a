#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/vocabulary.h"

namespace tare::text {

struct UnigramOptions {
  TokenId unknown = kNoToken;     // id for characters that no token covers; without one they are an error at encode
  bool byte_fallback = false;     // unknown text becomes <0xXX> tokens, if all of those exist
  bool single_precision = false;  // add scores in f32 as SentencePiece does; else f64 (tokenizers library)
  std::optional<double> lowest_score;  // of the tokens that set the price of unknown characters; default: of all
};

/// Unigram language model: the segmentation with the highest sum of scores (Viterbi), unknown characters at
/// the lowest score - 10. Immutable and thread-safe. Time: text bytes times the length of the longest token.
/// Source: Kudo (arXiv:1804.10959); ties as in the tokenizers library 0.23 (the first found, shorter tokens first).
class Unigram {
 public:
  /// scores[id]; `matches[id]`: whether text can become the token.
  /// Errors: sizes that differ, a score that is not finite, an unknown id out of range.
  static Result<Unigram> create(const Vocabulary& vocabulary, std::vector<double> scores,
                                const std::vector<bool>& matches, UnigramOptions options, std::string_view where);

  /// Tokens of one piece (well-formed UTF-8). Neighbouring unknown characters are one unknown token.
  /// Errors: unknown text without an unknown token.
  Status encode(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenSpan>& out) const;

 private:
  std::vector<double> scores_;
  std::shared_ptr<const Trie> trie_;
  UnigramOptions options_;
  double unknown_score_ = 0;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace tare::text
