#include "text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/unicode.h"

namespace tare::text {

Result<Unigram> Unigram::create(const Vocabulary& vocabulary, std::vector<double> scores,
                                const std::vector<bool>& matches, UnigramOptions options, std::string_view where) {
  if (scores.size() != vocabulary.size() || matches.size() != vocabulary.size()) {
    return invalid_input("token scores do not fit the vocabulary", {.where = std::string(where),
                                                                    .expected = fmt::format("{}", vocabulary.size()),
                                                                    .found = fmt::format("{}", scores.size())});
  }
  if (options.unknown != kNoToken &&
      (options.unknown < 0 || options.unknown >= static_cast<TokenId>(vocabulary.size()))) {
    return invalid_input("the unknown id is outside the vocabulary",
                         {.where = std::string(where),
                          .expected = fmt::format("below {}", vocabulary.size()),
                          .found = fmt::format("{}", options.unknown)});
  }
  Unigram model;
  double lowest = std::numeric_limits<double>::infinity();
  std::vector<Trie::Entry> entries;
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    if (!std::isfinite(scores[id])) {
      return invalid_input("a token score is not finite",
                           {.where = std::string(where), .found = fmt::format("token {}", id)});
    }
    if (!matches[id]) continue;
    lowest = std::min(lowest, scores[id]);
    entries.push_back({vocabulary.token(id), id});
  }
  if (entries.empty()) lowest = 0;
  model.trie_ = std::make_shared<const Trie>(std::move(entries));
  model.scores_ = std::move(scores);
  model.options_ = options;
  if (options.lowest_score) lowest = *options.lowest_score;
  model.unknown_score_ = lowest - 10.0;
  model.byte_tokens_.fill(kNoToken);
  if (options.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) model.byte_tokens_[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte));
  }
  return model;
}

Status Unigram::encode(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenSpan>& out) const {
  struct Best {
    double score;
    uint32_t from;
    TokenId id;
  };
  constexpr Best kNone{0, UINT32_MAX, kNoToken};
  const auto add = [&](double a, double b) {
    return options_.single_precision ? static_cast<double>(static_cast<float>(a) + static_cast<float>(b)) : a + b;
  };
  // Most pieces are words: their table is on the stack.
  constexpr size_t kWord = 96;
  Best word_table[kWord + 1];
  std::vector<Best> long_table;
  if (piece.size() > kWord) long_table.resize(piece.size() + 1);
  Best* const best = piece.size() > kWord ? long_table.data() : word_table;
  std::fill_n(best, piece.size() + 1, kNone);
  for (size_t at = 0; at < piece.size();) {
    const uint32_t bytes = char_bytes(piece[at]);
    const double here = best[at].score;
    bool single = false;
    const auto offer = [&](size_t length, double score, TokenId id) {
      Best& target = best[at + length];
      const double total = add(score, here);
      if (target.from == UINT32_MAX || total > target.score) target = {total, static_cast<uint32_t>(at), id};
    };
    trie_->prefixes(piece, at, [&](size_t length, int32_t id) {
      offer(length, scores_[id], id);
      if (length == bytes) single = true;
    });
    if (!single) offer(bytes, unknown_score_, options_.unknown);
    at += bytes;
  }
  std::vector<TokenSpan> reversed;
  reversed.reserve(piece.size() / 4 + 1);
  for (size_t at = piece.size(); at > 0;) {
    const Best& step = best[at];
    const auto bytes = static_cast<uint32_t>(at - step.from);
    if (step.id == options_.unknown && !reversed.empty() && reversed.back().id == options_.unknown) {
      reversed.back().bytes += bytes;
    } else {
      reversed.push_back({step.id, bytes});
    }
    at = step.from;
  }
  size_t at = 0;
  for (auto span = reversed.rbegin(); span != reversed.rend(); ++span) {
    const std::string_view text = piece.substr(at, span->bytes);
    at += span->bytes;
    if (span->id != options_.unknown) {
      out.push_back(*span);
      continue;
    }
    // Several unknown characters in a row may spell a token that one of them alone does not.
    const TokenId id = options_.single_precision ? kNoToken : vocabulary.find(text);
    if (id != kNoToken) {
      out.push_back({id, span->bytes});
      continue;
    }
    const bool all = options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char b) {
                       return byte_tokens_[static_cast<uint8_t>(b)] != kNoToken;
                     });
    if (all) {
      // Every byte token stands for the whole text; the first carries its length.
      for (size_t i = 0; i < text.size(); ++i) {
        out.push_back({byte_tokens_[static_cast<uint8_t>(text[i])], i == 0 ? span->bytes : 0});
      }
    } else if (options_.unknown == kNoToken) {
      return invalid_input("text has no token and the tokenizer has no unknown token",
                           {.found = fmt::format("'{}'", text.substr(0, 40))});
    } else {
      out.push_back({options_.unknown, span->bytes});
    }
  }
  return {};
}

}  // namespace tare::text
