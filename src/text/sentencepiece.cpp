#include "text/sentencepiece.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "text/protobuf.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tare::text {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

bool may_match(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined || type == PieceType::kUnused;
}

// Rank of each token text may become: the place of its score, best first; equal scores share a rank.
std::vector<uint32_t> ranks_of(const SentencePieceModel& model) {
  std::vector<uint32_t> order(model.pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return model.scores[a] > model.scores[b]; });
  std::vector<uint32_t> ranks(model.pieces.size(), Bpe::kNotMerged);
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && model.scores[order[i]] != model.scores[order[i - 1]]) ++rank;
    if (may_match(model.types[order[i]])) ranks[order[i]] = rank;
  }
  return ranks;
}

Result<Unigram> make_unigram(const SentencePieceModel& model, const Vocabulary& vocabulary, TokenId unknown,
                             std::string_view where) {
  // User-defined symbols win over any way to spell them: length * best score - 0.1 (unigram_model.cc).
  float best = -std::numeric_limits<float>::infinity();
  float worst = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.types[i] != PieceType::kNormal) continue;
    best = std::max(best, model.scores[i]);
    worst = std::min(worst, model.scores[i]);
  }
  std::vector<double> scores(model.scores.begin(), model.scores.end());
  std::vector<bool> matches(model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    matches[i] = model.types[i] == PieceType::kNormal || model.types[i] == PieceType::kUserDefined;
    if (model.types[i] == PieceType::kUserDefined && std::isfinite(best)) {
      scores[i] = static_cast<float>(static_cast<double>(static_cast<float>(model.pieces[i].size()) * best) - 0.1);
    }
  }
  UnigramOptions options{.unknown = unknown, .byte_fallback = model.byte_fallback, .single_precision = true};
  if (std::isfinite(worst)) options.lowest_score = worst;
  return Unigram::create(vocabulary, std::move(scores), matches, options, where);
}

}  // namespace

Result<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model, std::string_view where,
                                               std::vector<std::string> warnings) {
  if (model.pieces.empty() || model.scores.size() != model.pieces.size() || model.types.size() != model.pieces.size()) {
    return invalid_input("tokens, scores and types do not fit",
                         {.where = std::string(where),
                          .found = fmt::format("{} tokens, {} scores, {} types", model.pieces.size(),
                                               model.scores.size(), model.types.size())});
  }
  TokenizerParts parts;
  parts.source = std::string(where);
  parts.warnings = std::move(warnings);
  TokenId unknown = kNoToken;
  std::vector<Trie::Entry> user_defined;
  bool all_bytes = true;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& piece = model.pieces[i];
    if (piece.empty() || find_invalid_utf8(piece)) {
      return invalid_input("a token is empty or not UTF-8",
                           {.where = std::string(where), .found = fmt::format("token {}", i)});
    }
    if (!std::isfinite(model.scores[i])) {
      return invalid_input("a token score is not finite",
                           {.where = std::string(where), .found = fmt::format("token {}", i)});
    }
    AddedToken added{.id = id, .content = piece};
    switch (model.types[i]) {
      case PieceType::kUnknown:
        if (unknown != kNoToken) {
          return invalid_input("two unknown tokens",
                               {.where = std::string(where), .found = fmt::format("{} and {}", unknown, i)});
        }
        unknown = id;
        added.special = true;
        break;
      case PieceType::kControl:
        added.special = true;
        added.rstrip = std::find(model.strip_right.begin(), model.strip_right.end(), id) != model.strip_right.end();
        break;
      case PieceType::kUserDefined:
        added.normalized = !model.user_defined_in_raw_text;
        added.already_normalized = true;
        user_defined.push_back({piece, 0});
        break;
      case PieceType::kByte:
        if (byte_of_token(piece) < 0) {
          return invalid_input(
              "a byte token has no byte",
              {.where = std::string(where), .expected = "<0x00> to <0xFF>", .found = piece.substr(0, 100)});
        }
        continue;
      default:
        continue;
    }
    // In a unigram model user-defined symbols compete in the lattice; only in BPE they cut the text.
    if (model.types[i] == PieceType::kUserDefined && model.algorithm == SentencePieceModel::Algorithm::kUnigram &&
        !model.user_defined_in_raw_text) {
      continue;
    }
    parts.added.push_back(std::move(added));
  }
  for (AddedToken& token : model.added) {
    token.normalized = false;
    const auto same = std::find_if(parts.added.begin(), parts.added.end(),
                                   [&](const AddedToken& have) { return have.id == token.id; });
    if (same == parts.added.end()) {
      parts.added.push_back(std::move(token));
    } else if (same->content != token.content) {
      return invalid_input("an added token has the id of another token",
                           {.where = std::string(where),
                            .expected = same->content,
                            .found = fmt::format("'{}' as id {}", token.content, token.id)});
    } else {
      *same = std::move(token);
    }
  }
  if (unknown == kNoToken) return invalid_input("no unknown token", {.where = std::string(where)});

  NormalizerStep step;
  step.kind = NormalizerStep::Kind::kSentencePiece;
  step.charsmap = model.charsmap;
  if (!user_defined.empty() && !model.user_defined_in_raw_text) {
    step.protected_text = std::make_shared<const Trie>(user_defined);
  }
  step.add_dummy_prefix = model.add_dummy_prefix;
  step.remove_extra_whitespaces = model.remove_extra_whitespaces;
  step.escape_whitespaces = model.escape_whitespaces;
  step.whitespace_as_suffix = model.whitespace_as_suffix;

  TARE_ASSIGN(parts.vocabulary, Vocabulary::create(model.pieces, where));
  if (model.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      all_bytes = all_bytes && parts.vocabulary.find(fmt::format("<0x{:02X}>", byte)) != kNoToken;
    }
    if (!all_bytes) return invalid_input("byte fallback without a token for every byte", {.where = std::string(where)});
  }
  if (model.algorithm == SentencePieceModel::Algorithm::kBpe) {
    std::vector<bool> unused;
    for (const PieceType type : model.types) unused.push_back(type == PieceType::kUnused);
    BpeOptions options;
    options.unknown = model.pieces[unknown];
    options.fuse_unknown = true;
    options.byte_fallback = model.byte_fallback;
    TARE_ASSIGN(parts.model, Bpe::from_ranks(parts.vocabulary, ranks_of(model), unused, options, where));
  } else {
    TARE_ASSIGN(parts.model, make_unigram(model, parts.vocabulary, unknown, where));
  }
  parts.normalizer.push_back(std::move(step));

  if (model.escape_whitespaces) {
    parts.decoder.push_back({.kind = DecoderStep::Kind::kReplace, .pattern = std::string(kSpaceMark), .content = " "});
  }
  if (model.byte_fallback) parts.decoder.push_back({.kind = DecoderStep::Kind::kByteFallback});
  parts.decoder.push_back({.kind = DecoderStep::Kind::kFuse});
  if (model.add_dummy_prefix) {
    DecoderStep strip{.kind = DecoderStep::Kind::kStrip, .content = " "};
    (model.whitespace_as_suffix ? strip.stop : strip.start) = 1;
    parts.decoder.push_back(strip);
  }

  parts.special = model.special;
  parts.special.unknown = unknown;
  PostProcessorStep frame;
  if (model.add_bos && model.special.bos) frame.parts.push_back({.text = false, .ids = {*model.special.bos}});
  frame.parts.push_back({.text = true, .ids = {}});
  if (model.add_eos && model.special.eos) frame.parts.push_back({.text = false, .ids = {*model.special.eos}});
  if (frame.parts.size() > 1) parts.post_processor.push_back(std::move(frame));
  return make_tokenizer(std::move(parts), where);
}

namespace {

using Field = ProtobufField;

Status wrong_wire(const Field& field, std::string_view message, std::string_view where) {
  return invalid_input(
      "malformed SentencePiece model",
      {.where = std::string(where), .found = fmt::format("field {} of {} has the wrong type", field.tag, message)});
}

// Fields of one message with their expected types; visit(field) sees the known ones.
template <class Visit>
Status read_message(std::string_view bytes, std::string_view name, std::string_view where, Visit visit) {
  ProtobufReader reader(bytes, where);
  for (;;) {
    TARE_ASSIGN(const auto field, reader.next());
    if (!field) return {};
    const bool fits = visit(*field);
    if (!fits) return wrong_wire(*field, name, where);
  }
}

bool is_number(const Field& field) {
  return field.wire == Field::Wire::kVarint;
}
bool is_bytes(const Field& field) {
  return field.wire == Field::Wire::kBytes;
}

// The optional id of a role, as the trainer wrote it: negative (as a 64-bit varint) means none.
std::optional<TokenId> role_id(int64_t id) {
  if (id < 0 || id > INT32_MAX) return std::nullopt;
  return static_cast<TokenId>(id);
}

struct TrainerFields {
  int64_t model_type = 1;
  bool whitespace_as_suffix = false;
  bool byte_fallback = false;
  int64_t unknown = 0, bos = 1, eos = 2, padding = -1;
};

Status read_trainer(std::string_view bytes, TrainerFields& out, std::string_view where) {
  return read_message(bytes, "trainer_spec", where, [&](const Field& field) {
    const auto number = static_cast<int64_t>(field.number);
    switch (field.tag) {
      case 3:
        out.model_type = number;
        return is_number(field);
      case 24:
        out.whitespace_as_suffix = field.as_bool();
        return is_number(field);
      case 35:
        out.byte_fallback = field.as_bool();
        return is_number(field);
      case 40:
        out.unknown = number;
        return is_number(field);
      case 41:
        out.bos = number;
        return is_number(field);
      case 42:
        out.eos = number;
        return is_number(field);
      case 43:
        out.padding = number;
        return is_number(field);
      default:
        return true;
    }
  });
}

}  // namespace

Result<SentencePieceModel> read_sentencepiece_model(std::string_view bytes, std::string_view where) {
  SentencePieceModel model;
  TrainerFields trainer;
  std::string_view charsmap;
  ProtobufReader reader(bytes, where);
  for (;;) {
    TARE_ASSIGN(const auto field, reader.next());
    if (!field) break;
    if (field->tag >= 1 && field->tag <= 3 && !is_bytes(*field)) TARE_TRY(wrong_wire(*field, "the model", where));
    if (field->tag == 1) {
      std::string piece;
      float score = 0;
      uint64_t type = 1;
      TARE_TRY(read_message(field->bytes, "a piece", where, [&](const Field& part) {
        switch (part.tag) {
          case 1:
            piece = std::string(part.bytes);
            return is_bytes(part);
          case 2:
            score = part.as_float();
            return part.wire == Field::Wire::kFixed32;
          case 3:
            type = part.number;
            return is_number(part);
          default:
            return true;
        }
      }));
      if (type < 1 || type > 6) {
        return invalid_input("unknown piece type", {.where = std::string(where),
                                                    .expected = "1 to 6",
                                                    .found = fmt::format("{} of piece {}", type, model.pieces.size())});
      }
      model.pieces.push_back(std::move(piece));
      model.scores.push_back(score);
      model.types.push_back(static_cast<PieceType>(type));
    } else if (field->tag == 2) {
      TARE_TRY(read_trainer(field->bytes, trainer, where));
    } else if (field->tag == 3) {
      TARE_TRY(read_message(field->bytes, "normalizer_spec", where, [&](const Field& part) {
        switch (part.tag) {
          case 2:
            charsmap = part.bytes;
            return is_bytes(part);
          case 3:
            model.add_dummy_prefix = part.as_bool();
            return is_number(part);
          case 4:
            model.remove_extra_whitespaces = part.as_bool();
            return is_number(part);
          case 5:
            model.escape_whitespaces = part.as_bool();
            return is_number(part);
          default:
            return true;
        }
      }));
    }
  }
  if (model.pieces.empty()) return invalid_input("no pieces in the SentencePiece model", {.where = std::string(where)});
  if (trainer.model_type == 1) {
    model.algorithm = SentencePieceModel::Algorithm::kUnigram;
  } else if (trainer.model_type == 2) {
    model.algorithm = SentencePieceModel::Algorithm::kBpe;
  } else {
    return unsupported("SentencePiece model type is not supported", {.where = std::string(where),
                                                                     .expected = "unigram (1) or BPE (2)",
                                                                     .found = fmt::format("{}", trainer.model_type)});
  }
  if (!charsmap.empty()) {
    TARE_ASSIGN(Charsmap rules, Charsmap::create(charsmap, where));
    model.charsmap = std::make_shared<const Charsmap>(std::move(rules));
  }
  model.whitespace_as_suffix = trainer.whitespace_as_suffix;
  model.byte_fallback = trainer.byte_fallback;
  const auto size = static_cast<int64_t>(model.pieces.size());
  for (const int64_t id : {trainer.unknown, trainer.bos, trainer.eos, trainer.padding}) {
    if (id >= size) {
      return invalid_input(
          "a special id is outside the vocabulary",
          {.where = std::string(where), .expected = fmt::format("below {}", size), .found = fmt::format("{}", id)});
    }
  }
  model.special = {.bos = role_id(trainer.bos),
                   .eos = role_id(trainer.eos),
                   .unknown = role_id(trainer.unknown),
                   .padding = role_id(trainer.padding)};
  return model;
}

Result<Tokenizer> load_sentencepiece_model(std::string_view bytes, std::string_view where) {
  TARE_ASSIGN(SentencePieceModel model, read_sentencepiece_model(bytes, where));
  model.add_bos = model.special.bos.has_value();
  return make_sentencepiece_tokenizer(std::move(model), where);
}

}  // namespace tare::text
