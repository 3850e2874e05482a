#include "text/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "text/gguf_pre_tokenizers.h"
#include "text/sentencepiece.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tare::text {

namespace {

Result<std::vector<PieceType>> types_of(const GgufVocabulary& vocabulary, std::string_view where) {
  std::vector<PieceType> out(vocabulary.tokens.size(), PieceType::kNormal);
  if (vocabulary.token_type.empty()) return out;
  if (vocabulary.token_type.size() != vocabulary.tokens.size()) {
    return invalid_input("tokenizer.ggml.token_type does not fit the tokens",
                         {.where = std::string(where),
                          .expected = fmt::format("{}", vocabulary.tokens.size()),
                          .found = fmt::format("{}", vocabulary.token_type.size())});
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const int32_t type = vocabulary.token_type[i];
    if (type < 1 || type > 6) {
      return invalid_input(
          "unknown token type",
          {.where = std::string(where), .expected = "1 to 6", .found = fmt::format("{} of token {}", type, i)});
    }
    out[i] = static_cast<PieceType>(type);
  }
  return out;
}

Result<SpecialTokens> roles_of(const GgufVocabulary& vocabulary, std::string_view where) {
  SpecialTokens out;
  const auto role = [&](std::optional<int64_t> id, std::string_view name, std::optional<TokenId>& into) -> Status {
    if (!id) return {};
    if (*id < 0 || *id >= static_cast<int64_t>(vocabulary.tokens.size())) {
      return invalid_input(fmt::format("the {} id is outside the vocabulary", name),
                           {.where = std::string(where),
                            .expected = fmt::format("below {}", vocabulary.tokens.size()),
                            .found = fmt::format("{}", *id)});
    }
    into = static_cast<TokenId>(*id);
    return {};
  };
  TARE_TRY(role(vocabulary.bos_id, "BOS", out.bos));
  TARE_TRY(role(vocabulary.eos_id, "EOS", out.eos));
  TARE_TRY(role(vocabulary.unknown_id, "unknown", out.unknown));
  TARE_TRY(role(vocabulary.padding_id, "padding", out.padding));
  TARE_TRY(role(vocabulary.eot_id, "end-of-turn", out.end_of_turn));
  TARE_TRY(role(vocabulary.mask_id, "mask", out.mask));
  return out;
}

// Control tokens of Phi-3 swallow the white space on their right, but for a few; the file does not say so.
std::vector<TokenId> phi3_strip_right(const GgufVocabulary& vocabulary, const std::vector<PieceType>& types) {
  std::string name = vocabulary.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::vector<TokenId> out;
  if (name.find("phi-3") == name.npos && name.find("phi3") == name.npos) return out;
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    const bool control = types[i] == PieceType::kControl || token == "</s>";
    if (control && token != "<unk>" && token != "<s>" && token != "<|endoftext|>")
      out.push_back(static_cast<TokenId>(i));
  }
  return out;
}

Result<Tokenizer> load_sentencepiece(const GgufVocabulary& vocabulary, SentencePieceModel::Algorithm algorithm,
                                     std::string_view where) {
  SentencePieceModel model;
  model.algorithm = algorithm;
  const bool bpe = algorithm == SentencePieceModel::Algorithm::kBpe;
  TARE_ASSIGN(model.types, types_of(vocabulary, where));
  TARE_ASSIGN(model.special, roles_of(vocabulary, where));
  if (vocabulary.scores.size() != vocabulary.tokens.size()) {
    return invalid_input("tokenizer.ggml.scores does not fit the tokens",
                         {.where = std::string(where),
                          .expected = fmt::format("{}", vocabulary.tokens.size()),
                          .found = fmt::format("{}", vocabulary.scores.size())});
  }
  model.pieces = vocabulary.tokens;
  model.scores = vocabulary.scores;
  if (!vocabulary.precompiled_charsmap.empty()) {
    TARE_ASSIGN(Charsmap charsmap, Charsmap::create(vocabulary.precompiled_charsmap, where));
    model.charsmap = std::make_shared<const Charsmap>(std::move(charsmap));
  }
  // Files without token types, or whose unknown token has another type. Converters fill a vocabulary up to the size of
  // the embedding with tokens of the unknown type; text never becomes one of those.
  const TokenId unknown = model.special.unknown.value_or(0);
  const auto unknowns = std::count(model.types.begin(), model.types.end(), PieceType::kUnknown);
  if (unknowns == 0 || unknowns > 1 || model.special.unknown) {
    std::replace(model.types.begin(), model.types.end(), PieceType::kUnknown, PieceType::kUnused);
    model.types[unknown] = PieceType::kUnknown;
  }
  model.byte_fallback = std::count(model.types.begin(), model.types.end(), PieceType::kByte) > 0;
  model.add_dummy_prefix = vocabulary.add_space_prefix.value_or(true);
  model.remove_extra_whitespaces = !bpe && vocabulary.remove_extra_whitespaces.value_or(false);
  if (bpe && !model.special.bos) model.special.bos = 1;
  if (!model.special.eos) model.special.eos = bpe ? 2 : 1;
  const auto size = static_cast<TokenId>(model.pieces.size());
  if ((model.special.bos && *model.special.bos >= size) || *model.special.eos >= size) {
    return invalid_input("vocabulary too small",
                         {.where = std::string(where), .found = fmt::format("{} tokens", size)});
  }
  model.add_bos = vocabulary.add_bos.value_or(bpe);
  model.add_eos = vocabulary.add_eos.value_or(!bpe);
  if (model.add_bos && !model.special.bos) {
    return invalid_input("add_bos_token without a BOS token", {.where = std::string(where)});
  }
  model.user_defined_in_raw_text = true;
  model.strip_right = phi3_strip_right(vocabulary, model.types);
  return make_sentencepiece_tokenizer(std::move(model), where);
}

Result<PreTokenizer> pipeline_of(const GgufPreTokenizer& entry, std::string_view where) {
  using Step = GgufPreTokenizer::Step;
  PreTokenizer before;
  PreTokenizer after;
  bool gpt2 = false;
  for (const GgufPreTokenizer::Part& part : entry.parts) {
    PreTokenizerStep step;
    switch (part.step) {
      case Step::kSplit: {
        step.scanner = find_scanner(part.pattern);
        TARE_ASSIGN(Regex regex, Regex::compile(part.pattern, RegexDialect::kOniguruma, where));
        step.regex = std::make_shared<const Regex>(std::move(regex));
        before.push_back(std::move(step));
        break;
      }
      case Step::kDigits:
        step.kind = PreTokenizerStep::Kind::kDigits;
        step.individual_digits = true;
        before.push_back(std::move(step));
        break;
      case Step::kPunctuation:
        step.kind = PreTokenizerStep::Kind::kPunctuation;
        step.behavior = SplitBehavior::kContiguous;
        before.push_back(std::move(step));
        break;
      case Step::kGpt2:
        gpt2 = true;
        break;
      case Step::kByteDigits:
        step.kind = PreTokenizerStep::Kind::kDigits;
        after.push_back(std::move(step));
        break;
      case Step::kThreeDigits:
        step.scanner = Scanner{.kind = Scanner::Kind::kThreeDigits};
        after.push_back(std::move(step));
        break;
    }
  }
  before.push_back({.kind = PreTokenizerStep::Kind::kByteLevel, .use_regex = gpt2});
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

Result<Tokenizer> load_bpe(const GgufVocabulary& vocabulary, const GgufPreTokenizer& entry, std::string_view where) {
  TokenizerParts parts;
  parts.source = std::string(where);
  TARE_ASSIGN(const std::vector<PieceType> types, types_of(vocabulary, where));
  TARE_ASSIGN(parts.special, roles_of(vocabulary, where));
  // Text becomes neither control tokens nor unused ones; both are found by other means or not at all.
  std::vector<bool> hidden(vocabulary.tokens.size(), false);
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    if (token.empty() || find_invalid_utf8(token)) {
      return invalid_input("a token is empty or not UTF-8",
                           {.where = std::string(where), .found = fmt::format("token {}", i)});
    }
    const bool unknown = types[i] == PieceType::kUnknown && !entry.pieces_of_text;
    if (types[i] == PieceType::kControl || types[i] == PieceType::kUserDefined || types[i] == PieceType::kUnknown) {
      parts.added.push_back(
          {.id = static_cast<TokenId>(i), .content = token, .special = types[i] != PieceType::kUserDefined});
    }
    hidden[i] = types[i] == PieceType::kControl || types[i] == PieceType::kUnused || unknown;
  }
  const std::vector<TokenId> strip_right = phi3_strip_right(vocabulary, types);
  for (AddedToken& token : parts.added) {
    token.rstrip = std::find(strip_right.begin(), strip_right.end(), token.id) != strip_right.end();
  }
  TARE_ASSIGN(parts.vocabulary, Vocabulary::create(vocabulary.tokens, where, hidden));
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(vocabulary.merges.size());
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos || space + 1 >= merge.size()) {
      return invalid_input("malformed merge", {.where = fmt::format("{}: merge {}", where, merges.size()),
                                               .expected = "\"left right\"",
                                               .found = merge.substr(0, 100)});
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  if (merges.empty() && !vocabulary.has_merges)
    return invalid_input("tokenizer.ggml.merges is missing", {.where = std::string(where)});
  BpeOptions options;
  options.ignore_merges = entry.ignore_merges;
  if (entry.pieces_of_text) {
    options.byte_fallback = true;
    options.fuse_unknown = true;
    if (parts.special.unknown) options.unknown = vocabulary.tokens[*parts.special.unknown];
    parts.normalizer.push_back({.kind = NormalizerStep::Kind::kReplace, .pattern = " ", .content = "\xE2\x96\x81"});
    parts.decoder.push_back({.kind = DecoderStep::Kind::kReplace, .pattern = "\xE2\x96\x81", .content = " "});
    parts.decoder.push_back({.kind = DecoderStep::Kind::kByteFallback});
    parts.decoder.push_back({.kind = DecoderStep::Kind::kFuse});
  } else {
    if (entry.nfc) parts.normalizer.push_back({.kind = NormalizerStep::Kind::kNfc});
    TARE_ASSIGN(parts.pre_tokenizer, pipeline_of(entry, where));
    parts.decoder.push_back({.kind = DecoderStep::Kind::kByteLevel});
  }
  TARE_ASSIGN(Bpe bpe, Bpe::from_merges(parts.vocabulary, merges, options, where));
  if (!entry.pieces_of_text) bpe.index_bytes(parts.vocabulary);
  parts.model = std::move(bpe);
  PostProcessorStep frame;
  if (vocabulary.add_bos.value_or(entry.add_bos)) {
    if (!parts.special.bos) return invalid_input("add_bos_token without a BOS token", {.where = std::string(where)});
    frame.parts.push_back({.text = false, .ids = {*parts.special.bos}});
  }
  frame.parts.push_back({.text = true, .ids = {}});
  if (vocabulary.add_eos.value_or(false)) {
    if (!parts.special.eos) return invalid_input("add_eos_token without an EOS token", {.where = std::string(where)});
    frame.parts.push_back({.text = false, .ids = {*parts.special.eos}});
  }
  if (frame.parts.size() > 1) parts.post_processor.push_back(std::move(frame));
  return make_tokenizer(std::move(parts), where);
}

}  // namespace

std::vector<std::string_view> known_gguf_pre_tokenizers() {
  std::vector<std::string_view> names;
  for (const GgufPreTokenizer& entry : gguf_pre_tokenizers()) names.push_back(entry.name);
  return names;
}

Result<Tokenizer> load_gguf_vocabulary(const GgufVocabulary& vocabulary, std::string_view where) {
  if (vocabulary.tokens.empty())
    return invalid_input("tokenizer.ggml.tokens is missing", {.where = std::string(where)});
  if (vocabulary.model == "llama") return load_sentencepiece(vocabulary, SentencePieceModel::Algorithm::kBpe, where);
  if (vocabulary.model == "t5") return load_sentencepiece(vocabulary, SentencePieceModel::Algorithm::kUnigram, where);
  if (vocabulary.model != "gpt2" && vocabulary.model != "gemma4") {
    return unsupported(
        "tokenizer model of the GGUF is not supported",
        {.where = std::string(where), .expected = "llama, gpt2, t5 or gemma4", .found = vocabulary.model});
  }
  const std::string pre = vocabulary.model == "gemma4" ? "gemma4" : vocabulary.pre.value_or("");
  if (pre.empty()) {
    return unsupported("the GGUF does not name its pre-tokenizer",
                       {.where = fmt::format("{}: tokenizer.ggml.pre", where),
                        .expected = "a name",
                        .hint = "convert the model again with a newer converter"});
  }
  const GgufPreTokenizer* entry = find_gguf_pre_tokenizer(pre);
  if (!entry) {
    return unsupported("unknown pre-tokenizer of the GGUF",
                       {.where = fmt::format("{}: tokenizer.ggml.pre", where), .found = pre});
  }
  return load_bpe(vocabulary, *entry, where);
}

}  // namespace tare::text
