#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/pipeline_json.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tare::text {

namespace {

using json::object;
using json::value;

constexpr int64_t kMaxId = (1 << 24) - 1;

Result<std::vector<AddedToken>> parse_added(const object& root, std::string_view where) {
  std::vector<AddedToken> out;
  const value* list = json::find(root, "added_tokens");
  if (!list) return out;
  const std::string place = fmt::format("{}: added_tokens", where);
  if (!list->is_array()) return invalid_input("'added_tokens' is no list", {.where = place});
  for (const value& member : list->get_array()) {
    if (!member.is_object()) return invalid_input("an added token is no object", {.where = place});
    const object& fields = member.get_object();
    AddedToken token;
    TARE_ASSIGN(const int64_t id, json::get_int(fields, "id", place));
    if (id < 0 || id > kMaxId)
      return invalid_input("token id out of range", {.where = place, .found = fmt::format("{}", id)});
    token.id = static_cast<TokenId>(id);
    TARE_ASSIGN(token.content, json::get_string(fields, "content", place));
    TARE_ASSIGN(token.special, json::get_bool_or(fields, "special", false, place));
    TARE_ASSIGN(token.single_word, json::get_bool_or(fields, "single_word", false, place));
    TARE_ASSIGN(token.lstrip, json::get_bool_or(fields, "lstrip", false, place));
    TARE_ASSIGN(token.rstrip, json::get_bool_or(fields, "rstrip", false, place));
    TARE_ASSIGN(token.normalized, json::get_bool_or(fields, "normalized", !token.special, place));
    out.push_back(std::move(token));
  }
  return out;
}

// {"text": id, ...}. Ids that only added tokens fill get the added token's text, hidden from the model; ids that
// nothing fills are no tokens: an empty text, hidden too.
Result<Vocabulary> parse_vocab_map(const object& vocab, const std::vector<AddedToken>& added, std::string_view where) {
  if (vocab.empty()) return invalid_input("the vocabulary is empty", {.where = std::string(where)});
  int64_t highest = -1;
  for (const auto& entry : vocab) {
    const auto id = json::as_int(entry.value());
    if (!id || *id < 0 || *id > kMaxId) {
      return invalid_input("token id out of range",
                           {.where = std::string(where),
                            .expected = fmt::format("0 to {}", kMaxId),
                            .found = fmt::format("'{}': {}", std::string_view(entry.key()).substr(0, 100),
                                                 boost::json::serialize(entry.value()).substr(0, 40))});
    }
    highest = std::max(highest, *id);
  }
  TARE_TRY(check_room(highest, vocab.size() + added.size(), where));
  std::vector<std::string> tokens(static_cast<size_t>(highest) + 1);
  std::vector<bool> hidden(tokens.size(), true);
  for (const auto& entry : vocab) {
    const auto id = static_cast<size_t>(*json::as_int(entry.value()));
    if (!hidden[id]) {
      return invalid_input("two tokens have one id",
                           {.where = std::string(where),
                            .found = fmt::format("id {}: '{}' and '{}'", id, tokens[id].substr(0, 100),
                                                 std::string_view(entry.key()).substr(0, 100))});
    }
    tokens[id] = std::string(entry.key());
    hidden[id] = false;
  }
  for (const AddedToken& token : added) {
    if (static_cast<size_t>(token.id) < tokens.size() && hidden[token.id] && tokens[token.id].empty())
      tokens[token.id] = token.content;
  }
  return Vocabulary::create(std::move(tokens), where, hidden);
}

Result<std::vector<std::pair<std::string, std::string>>> parse_merges(const value& list, std::string_view where) {
  std::vector<std::pair<std::string, std::string>> out;
  if (!list.is_array()) return invalid_input("'merges' is no list", {.where = std::string(where)});
  out.reserve(list.get_array().size());
  for (const value& merge : list.get_array()) {
    const auto malformed = [&] {
      return invalid_input("malformed merge", {.where = fmt::format("{}: merge {}", where, out.size()),
                                               .expected = "\"left right\" or [\"left\", \"right\"]",
                                               .found = boost::json::serialize(merge).substr(0, 100)});
    };
    if (merge.is_string()) {
      const std::string_view text = merge.get_string();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) return malformed();
      out.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.get_array().size() == 2 && merge.get_array()[0].is_string() &&
               merge.get_array()[1].is_string()) {
      out.emplace_back(merge.get_array()[0].get_string(), merge.get_array()[1].get_string());
    } else {
      return malformed();
    }
  }
  return out;
}

// In most BPE files every token but the single characters is made by one merge. Where that holds but for a few tokens
// that two merges make, and as many that none makes, a merge has been damaged.
Status check_merges(const TokenizerParts& parts, const std::vector<std::pair<std::string, std::string>>& merges,
                    const BpeOptions& options, std::string_view where) {
  std::vector<bool> made(parts.vocabulary.size(), false);
  size_t twice = 0;
  std::string twice_text;
  for (const auto& [left, right] : merges) {
    const std::string joined = left + right.substr(options.continuing_prefix.size());
    const TokenId id = parts.vocabulary.find(joined);
    if (id == kNoToken) continue;
    if (made[id]) {
      ++twice;
      twice_text = joined;
    }
    made[id] = true;
  }
  for (const AddedToken& token : parts.added) {
    if (static_cast<size_t>(token.id) < made.size()) made[token.id] = true;
  }
  constexpr size_t kFew = 8;
  if (twice == 0 || twice > kFew) return {};
  size_t never = 0;
  std::string never_text;
  for (TokenId id = 0; id < static_cast<TokenId>(made.size()); ++id) {
    const std::string_view token = parts.vocabulary.token(id);
    if (token.empty() || made[id] || token.size() <= char_bytes(token[0]) || byte_of_token(token) >= 0) continue;
    ++never;
    never_text = std::string(token.substr(0, 100));
  }
  if (never != twice) return {};
  return invalid_input("the merges do not fit the vocabulary",
                       {.where = std::string(where),
                        .expected = "one merge for each token",
                        .found = fmt::format("two for '{}' and none for '{}'", twice_text.substr(0, 100), never_text)});
}

Status parse_bpe(const object& model, TokenizerParts& parts, std::string_view where) {
  const value* vocab = json::find(model, "vocab");
  if (!vocab || !vocab->is_object())
    return invalid_input("'vocab' is missing or no object", {.where = std::string(where)});
  TARE_ASSIGN(parts.vocabulary, parse_vocab_map(vocab->get_object(), parts.added, where));
  TARE_ASSIGN(const double dropout, json::get_number_or(model, "dropout", 0.0, where));
  if (dropout != 0.0) {
    return unsupported("BPE dropout makes encoding random",
                       {.where = std::string(where), .found = fmt::format("dropout {}", dropout)});
  }
  BpeOptions options;
  TARE_ASSIGN(options.unknown, json::get_string_or(model, "unk_token", "", where));
  TARE_ASSIGN(options.continuing_prefix, json::get_string_or(model, "continuing_subword_prefix", "", where));
  TARE_ASSIGN(options.word_suffix, json::get_string_or(model, "end_of_word_suffix", "", where));
  TARE_ASSIGN(options.fuse_unknown, json::get_bool_or(model, "fuse_unk", false, where));
  TARE_ASSIGN(options.byte_fallback, json::get_bool_or(model, "byte_fallback", false, where));
  TARE_ASSIGN(options.ignore_merges, json::get_bool_or(model, "ignore_merges", false, where));
  const value* merges = json::find(model, "merges");
  if (!merges) return invalid_input("'merges' is missing", {.where = std::string(where)});
  TARE_ASSIGN(const auto pairs, parse_merges(*merges, where));
  TARE_ASSIGN(Bpe bpe, Bpe::from_merges(parts.vocabulary, pairs, options, where));
  TARE_TRY(check_merges(parts, pairs, options, where));
  bpe.index_bytes(parts.vocabulary);
  if (!options.unknown.empty()) parts.special.unknown = parts.vocabulary.find(options.unknown);
  parts.model = std::move(bpe);
  return {};
}

Status parse_unigram(const object& model, TokenizerParts& parts, std::string_view where) {
  const value* vocab = json::find(model, "vocab");
  if (!vocab || !vocab->is_array())
    return invalid_input("'vocab' is missing or no list", {.where = std::string(where)});
  std::vector<std::string> tokens;
  std::vector<double> scores;
  for (const value& entry : vocab->get_array()) {
    const auto* pair = entry.if_array();
    const auto score = pair && pair->size() == 2 ? json::as_number((*pair)[1]) : std::nullopt;
    if (!score || !(*pair)[0].is_string()) {
      return invalid_input("malformed vocabulary entry", {.where = fmt::format("{}: token {}", where, tokens.size()),
                                                          .expected = "[\"text\", score]",
                                                          .found = boost::json::serialize(entry).substr(0, 100)});
    }
    tokens.emplace_back((*pair)[0].get_string());
    scores.push_back(*score);
  }
  if (tokens.empty()) return invalid_input("the vocabulary is empty", {.where = std::string(where)});
  UnigramOptions options;
  TARE_ASSIGN(const int64_t unknown, json::get_int_or(model, "unk_id", -1, where));
  if (unknown < -1 || unknown >= static_cast<int64_t>(tokens.size())) {
    return invalid_input("the unknown id is outside the vocabulary",
                         {.where = std::string(where), .found = fmt::format("{}", unknown)});
  }
  options.unknown = static_cast<TokenId>(unknown);
  TARE_ASSIGN(options.byte_fallback, json::get_bool_or(model, "byte_fallback", false, where));
  const std::vector<bool> all(tokens.size(), true);
  TARE_ASSIGN(parts.vocabulary, Vocabulary::create(std::move(tokens), where));
  TARE_ASSIGN(Unigram unigram, Unigram::create(parts.vocabulary, std::move(scores), all, options, where));
  if (unknown >= 0) parts.special.unknown = options.unknown;
  parts.model = std::move(unigram);
  return {};
}

Status parse_model(const object& root, TokenizerParts& parts, std::string_view where) {
  const value* model = json::find(root, "model");
  if (!model || !model->is_object())
    return invalid_input("'model' is missing or no object", {.where = std::string(where)});
  const object& fields = model->get_object();
  const std::string place = fmt::format("{}: model", where);
  TARE_ASSIGN(std::string type, json::get_string_or(fields, "type", "", place));
  if (type.empty()) {  // old files leave it out
    const value* vocab = json::find(fields, "vocab");
    if (json::find(fields, "merges")) {
      type = "BPE";
    } else if (vocab && vocab->is_array()) {
      type = "Unigram";
    } else {
      return unsupported("tokenizer model without a type", {.where = place, .expected = "BPE or Unigram"});
    }
  }
  if (type == "BPE") return parse_bpe(fields, parts, place);
  if (type == "Unigram") return parse_unigram(fields, parts, place);
  return unsupported("tokenizer model is not supported", {.where = place, .expected = "BPE or Unigram", .found = type});
}

// What stands around a text tells which tokens begin and end a sequence, where no other file says so.
void guess_roles(TokenizerParts& parts) {
  for (const PostProcessorStep& step : parts.post_processor) {
    if (step.parts.empty()) continue;
    const auto& first = step.parts.front();
    const auto& last = step.parts.back();
    if (!first.text && first.ids.size() == 1) parts.special.bos = first.ids[0];
    if (!last.text && last.ids.size() == 1 && step.parts.size() > 1) parts.special.eos = last.ids[0];
  }
}

}  // namespace

Result<Tokenizer> load_tokenizer_json(std::string_view json_text, std::string_view where) {
  TARE_ASSIGN(const value document, json::parse(json_text, where));
  if (!document.is_object()) return invalid_input("tokenizer.json holds no object", {.where = std::string(where)});
  const object& root = document.get_object();
  TARE_ASSIGN(const std::string version, json::get_string_or(root, "version", "1.0", where));
  if (version != "1.0") {
    return unsupported("unknown version of tokenizer.json",
                       {.where = std::string(where), .expected = "1.0", .found = version});
  }
  TokenizerParts parts;
  parts.source = std::string(where);
  TARE_ASSIGN(parts.added, parse_added(root, where));
  TARE_TRY(parse_model(root, parts, where));
  if (const value* part = json::find(root, "normalizer")) {
    TARE_ASSIGN(parts.normalizer, parse_normalizer(*part, where));
  }
  if (const value* part = json::find(root, "pre_tokenizer")) {
    TARE_ASSIGN(parts.pre_tokenizer, parse_pre_tokenizer(*part, where));
  }
  if (const value* part = json::find(root, "post_processor")) {
    TARE_ASSIGN(parts.post_processor, parse_post_processor(*part, where));
  }
  if (const value* part = json::find(root, "decoder")) {
    TARE_ASSIGN(parts.decoder, parse_decoder(*part, where));
  }
  for (const char* setting : {"truncation", "padding"}) {
    if (json::find(root, setting))
      parts.warnings.push_back(fmt::format("{}: the {} setting is not applied", where, setting));
  }
  guess_roles(parts);
  return make_tokenizer(std::move(parts), where);
}

}  // namespace tare::text
