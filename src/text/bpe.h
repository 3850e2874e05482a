#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"

namespace tare::text {

/// A token with the number of bytes of the piece that it stands for.
struct TokenSpan {
  TokenId id;
  uint32_t bytes;
};

struct BpeOptions {
  std::string unknown;            // token for characters without one; empty: none (they are dropped and counted)
  bool fuse_unknown = false;      // neighbouring unknowns become one token
  bool byte_fallback = false;     // characters without a token become <0xXX> tokens, if all of those exist
  bool ignore_merges = false;     // a piece that is a token is that token, whatever the merges say
  std::string continuing_prefix;  // in front of every character but the first
  std::string word_suffix;        // behind the last character
};

/// Byte-pair encoding: starts from single characters and joins the pair with the lowest rank (the leftmost of equals)
/// until no pair has one. Immutable and thread-safe.
/// Source: Sennrich et al. (arXiv:1508.07909); order of joins as in the tokenizers library 0.23.
class Bpe {
 public:
  /// Merges as (left, right) texts in order of rank.
  /// Errors: a merge whose parts or result are not in the vocabulary, a merge twice, an unknown token that is not
  /// there.
  static Result<Bpe> from_merges(const Vocabulary& vocabulary,
                                 const std::vector<std::pair<std::string, std::string>>& merges, BpeOptions options,
                                 std::string_view where);

  /// Merges implied by an order of whole tokens (tiktoken's ranks, SentencePiece's scores): any two neighbours whose
  /// joined text is a token join, lowest rank first. ranks[id]: rank of the token, or kNotMerged for tokens that text
  /// never becomes (control, byte, unknown). `unused[id]`: tokens that are taken apart again at the end.
  static constexpr uint32_t kNotMerged = UINT32_MAX;
  static Result<Bpe> from_ranks(const Vocabulary& vocabulary, const std::vector<uint32_t>& ranks,
                                const std::vector<bool>& unused, BpeOptions options, std::string_view where);

  /// Prepares `encode_bytes` for a vocabulary in the byte-level alphabet.
  void index_bytes(const Vocabulary& vocabulary);

  /// Tokens of one piece of text whose characters are the characters of the vocabulary.
  /// `dropped` counts bytes that have no token.
  void encode_chars(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenSpan>& out,
                    size_t& dropped) const;

  /// Tokens of one piece of the text itself, whose bytes stand for the characters of the alphabet.
  void encode_bytes(std::string_view piece, std::vector<TokenSpan>& out, size_t& dropped) const;

  /// Whether `encode_bytes` gives what `encode_chars` gives on the same text in the byte-level alphabet.
  bool works_on_bytes() const { return indexed_; }

  /// Whether no token joins something and then a `mark`: then text may be cut before a mark that follows another
  /// character without changing the result.
  bool may_cut_before(const Vocabulary& vocabulary, std::string_view mark) const;

 private:
  /// What `encode_chars` starts from, by character; for ASCII and the mark kept in a table.
  TokenId start_of(const Vocabulary& vocabulary, std::string_view character) const;
  void index_chars(const Vocabulary& vocabulary);
  void merge(std::vector<TokenSpan>& word) const;
  /// Joins in place; the number of tokens left.
  size_t merge_short(TokenSpan* word, size_t n) const;
  void merge_long(std::vector<TokenSpan>& word) const;
  void finish(const Vocabulary& vocabulary, std::string_view piece, std::span<const TokenSpan> word,
              std::vector<TokenSpan>& out, size_t& dropped) const;

  BpeOptions options_;
  PairMap merges_;
  TokenId unknown_ = kNoToken;
  bool indexed_ = false;
  std::array<TokenId, 256> byte_tokens_{};  // <0xXX>
  bool has_byte_tokens_ = false;
  std::array<TokenId, 128> ascii_{};    // start_of, for encode_chars
  TokenId mark_ = kNoToken;             // start_of U+2581
  std::array<TokenId, 256> initial_{};  // for encode_bytes
  std::optional<Vocabulary> whole_;     // raw bytes of tokens, for ignore_merges in encode_bytes
  std::vector<TokenId> whole_ids_;
  // from_ranks only
  TokenId first_extra_ = INT32_MAX;                 // ids from here on stand for characters that are no tokens
  std::optional<Vocabulary> extra_;                 // their texts
  std::vector<std::pair<TokenId, TokenId>> parts_;  // of unused tokens
  std::vector<bool> starts_words_;                  // tokens that text may become
};

}  // namespace tare::text
