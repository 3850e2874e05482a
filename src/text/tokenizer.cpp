#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/tokenizer_state.h"
#include "text/unicode.h"
#include "text/word_cuts.h"

namespace tare::text {

namespace {

StreamRule stream_rule(const Decoder& decoder) {
  StreamRule rule;
  if (decoder.empty()) {
    rule.kind = StreamRule::Kind::kSpaced;
    return rule;
  }
  if (decoder.size() == 1 && decoder[0].kind == DecoderStep::Kind::kByteLevel) {
    rule.kind = StreamRule::Kind::kByteLevel;
    return rule;
  }
  const bool bytes_first = decoder[0].kind == DecoderStep::Kind::kByteFallback;
  if (decoder.size() == (bytes_first ? 2u : 1u) && decoder.back().kind == DecoderStep::Kind::kMetaspace) {
    rule.kind = StreamRule::Kind::kMetaspace;
    rule.byte_fallback = bytes_first;
    rule.replace.push_back(decoder.back());
    return rule;
  }
  bool fused = false;
  for (const DecoderStep& step : decoder) {
    switch (step.kind) {
      case DecoderStep::Kind::kReplace:
        if (step.regex || rule.byte_fallback || fused) return rule;
        rule.replace.push_back(step);
        break;
      case DecoderStep::Kind::kByteFallback:
        if (fused) return rule;
        rule.byte_fallback = true;
        break;
      case DecoderStep::Kind::kFuse:
        fused = true;
        break;
      case DecoderStep::Kind::kStrip:
        if (!fused || step.stop != 0 || rule.strip_start != 0) return rule;
        rule.strip = step.content;
        rule.strip_start = step.start;
        break;
      default:
        return rule;
    }
  }
  rule.kind = StreamRule::Kind::kPieces;
  return rule;
}

// Whether the text itself can be cut and its bytes given to the model.
void plan_direct(TokenizerState& state) {
  const auto* bpe = std::get_if<Bpe>(&state.parts.model);
  if (!bpe || !bpe->works_on_bytes()) return;
  bool bytes = false;
  for (const PreTokenizerStep& step : state.parts.pre_tokenizer) {
    if (step.kind == PreTokenizerStep::Kind::kByteLevel) {
      if (bytes || step.add_prefix_space) return;
      bytes = true;
      if (step.use_regex) {
        PreTokenizerStep split;
        split.scanner = Scanner{.kind = Scanner::Kind::kGpt2};
        state.direct_steps.push_back(split);
      }
    } else if (!only_splits(step)) {
      return;
    } else if (!bytes) {
      state.direct_steps.push_back(step);
    } else if (step.kind == PreTokenizerStep::Kind::kDigits ||
               (step.scanner && step.scanner->kind == Scanner::Kind::kThreeDigits && !step.invert &&
                step.behavior == SplitBehavior::kIsolated)) {
      state.direct_byte_steps.push_back(step);
    } else {
      return;
    }
  }
  state.direct = bytes;
}

}  // namespace

Status check_room(int64_t highest_id, size_t tokens, std::string_view where) {
  const size_t room = 2 * tokens + 1024;
  if (highest_id < 0 || static_cast<uint64_t>(highest_id) < room) return {};
  return invalid_input("the ids have a hole", {.where = std::string(where),
                                               .expected = fmt::format("ids below {} for {} tokens", room, tokens),
                                               .found = fmt::format("id {}", highest_id)});
}

Result<Tokenizer> make_tokenizer(TokenizerParts parts, std::string_view where) {
  auto state = std::make_shared<TokenizerState>();
  const auto model_size = static_cast<TokenId>(parts.vocabulary.size());
  TokenId highest = model_size - 1;
  for (const AddedToken& token : parts.added) highest = std::max(highest, token.id);
  constexpr TokenId kMaxTokens = 1 << 24;
  if (highest < 0 || highest >= kMaxTokens) {
    return invalid_input("vocabulary size out of range",
                         {.where = std::string(where), .found = fmt::format("highest id {}", highest)});
  }
  TARE_TRY(check_room(highest, parts.vocabulary.size() + parts.added.size(), where));
  state->vocab_size = static_cast<size_t>(highest) + 1;
  state->late_texts.resize(state->vocab_size - parts.vocabulary.size());
  std::vector<bool> named(state->vocab_size - parts.vocabulary.size(), false);
  state->is_special.assign(state->vocab_size, false);
  state->is_skipped.assign(state->vocab_size, false);
  state->is_hole.assign(state->vocab_size, false);
  TARE_ASSIGN(state->added, AddedTokens::create(parts.added, parts.normalizer, where));
  for (size_t i = 0; i < parts.added.size(); ++i) {
    const AddedToken& token = parts.added[i];
    if (token.id < 0)
      return invalid_input("an added token has a negative id", {.where = std::string(where), .found = token.content});
    if (!state->added_ids.emplace(token.content, token.id).second) {
      return invalid_input("an added token is listed twice", {.where = std::string(where), .found = token.content});
    }
    if (token.id >= model_size) {
      if (named[token.id - model_size]) {
        return invalid_input("two added tokens have one id",
                             {.where = std::string(where),
                              .found = fmt::format("id {}, '{}' and '{}'", token.id,
                                                   state->late_texts[token.id - model_size], token.content)});
      }
      named[token.id - model_size] = true;
      state->late_texts[token.id - model_size] = token.content;
    } else if (parts.vocabulary.token(token.id) != token.content) {
      return invalid_input("an added token has the id of another token",
                           {.where = std::string(where),
                            .expected = fmt::format("'{}' as id {}", parts.vocabulary.token(token.id), token.id),
                            .found = fmt::format("'{}'", token.content)});
    }
    if (const TokenId other = parts.vocabulary.find(token.content); other != kNoToken && other != token.id) {
      return invalid_input("an added token is in the vocabulary under another id",
                           {.where = std::string(where),
                            .expected = fmt::format("'{}' as {}", token.content, other),
                            .found = fmt::format("{}", token.id)});
    }
    const std::string& decoded = state->added.decode_texts()[i];
    if (decoded != token.content) state->decode_texts[token.id] = decoded;
    state->is_special[token.id] = token.special;
    // The library looks the decoded form up among the special tokens, so one that normalization changes is not left
    // out.
    state->is_skipped[token.id] = token.special && decoded == token.content;
  }
  for (size_t i = 0; parts.unnamed_ids_are_unused && i < named.size(); ++i) {
    if (named[i]) continue;
    state->late_texts[i] = fmt::format("<|unused_{}|>", model_size + static_cast<TokenId>(i));
    state->is_special[static_cast<size_t>(model_size) + i] = true;
    state->is_skipped[static_cast<size_t>(model_size) + i] = true;
    named[i] = true;
  }
  TokenId holes = 0, first_hole = kNoToken;
  for (TokenId id = 0; id <= highest; ++id) {
    const bool hole = id < model_size ? parts.vocabulary.token(id).empty() && parts.vocabulary.find("") != id
                                      : !named[static_cast<size_t>(id - model_size)];
    if (!hole) continue;
    state->is_hole[static_cast<size_t>(id)] = true;
    if (holes++ == 0) first_hole = id;
  }
  if (holes > 0) {
    parts.warnings.push_back(
        fmt::format("{}: {} ids are no tokens and have no text, {} is the first", where, holes, first_hole));
  }
  for (const PostProcessorStep& step : parts.post_processor) {
    for (const PostProcessorStep::Part& part : step.parts) {
      for (const TokenId id : part.ids) {
        if (id < 0 || id > highest) {
          return invalid_input("the template names an id outside the vocabulary",
                               {.where = std::string(where),
                                .expected = fmt::format("below {}", highest + 1),
                                .found = fmt::format("{}", id)});
        }
      }
    }
  }
  for (const auto& id : {parts.special.bos, parts.special.eos, parts.special.unknown, parts.special.padding,
                         parts.special.end_of_turn, parts.special.mask}) {
    if (id && (*id < 0 || *id > highest)) {
      return invalid_input("a special id is outside the vocabulary", {.where = std::string(where),
                                                                      .expected = fmt::format("below {}", highest + 1),
                                                                      .found = fmt::format("{}", *id)});
    }
  }
  state->stream = stream_rule(parts.decoder);
  state->parts = std::move(parts);
  plan_direct(*state);
  if (const auto* bpe = std::get_if<Bpe>(&state->parts.model); bpe && !state->direct) {
    constexpr std::string_view kMark = "\xE2\x96\x81";
    if (bpe->may_cut_before(state->parts.vocabulary, kMark)) state->cut_mark = kMark;
  }
  plan_words(*state);
  return Tokenizer(std::move(state));
}

Tokenizer with_roles(const Tokenizer& tokenizer, const SpecialTokens& special, std::vector<std::string> warnings) {
  auto state = std::make_shared<TokenizerState>(tokenizer.state());
  state->parts.special = special;
  for (std::string& warning : warnings) state->parts.warnings.push_back(std::move(warning));
  return Tokenizer(std::move(state));
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const TokenId id : ids) {
    TARE_TRY(token_text(id));
    if (state_->is_hole[id] || (skip_special && state_->is_skipped[id])) continue;
    tokens.push_back(state_->decode_text_of(id));
  }
  return decode_tokens(state_->parts.decoder, std::move(tokens));
}

Result<std::string_view> Tokenizer::token_text(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= state_->vocab_size) {
    return invalid_input("token id out of range", {.where = state_->parts.source,
                                                   .expected = fmt::format("0 to {}", state_->vocab_size - 1),
                                                   .found = fmt::format("{}", id)});
  }
  return state_->text_of(id);
}

std::optional<TokenId> Tokenizer::find_token(std::string_view text) const {
  if (const auto found = state_->added_ids.find(std::string(text)); found != state_->added_ids.end())
    return found->second;
  const TokenId id = state_->parts.vocabulary.find(text);
  return id == kNoToken ? std::nullopt : std::optional<TokenId>(id);
}

size_t Tokenizer::vocab_size() const {
  return state_->vocab_size;
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < state_->vocab_size && state_->is_special[id];
}

const SpecialTokens& Tokenizer::special() const {
  return state_->parts.special;
}

bool Tokenizer::adds_bos() const {
  if (!state_->parts.special.bos) return false;
  for (const PostProcessorStep& step : state_->parts.post_processor) {
    if (step.parts.empty() || step.parts[0].text || step.parts[0].ids.empty()) continue;
    if (step.parts[0].ids[0] == *state_->parts.special.bos) return true;
  }
  return false;
}

const std::string& Tokenizer::source() const {
  return state_->parts.source;
}

const std::vector<std::string>& Tokenizer::warnings() const {
  return state_->parts.warnings;
}

}  // namespace tare::text
