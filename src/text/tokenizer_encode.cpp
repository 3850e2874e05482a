#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "text/tokenizer.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"
#include "text/word_cuts.h"

namespace tare::text {

namespace {

// The Digits pre-tokenizer after bytes have become characters: some bytes above 127 look like numbers then.
void split_byte_digits(const PreTokenizerStep& step, std::string_view text, const std::vector<Piece>& pieces,
                       std::vector<Piece>& out) {
  const auto numeric = [&](uint32_t at) {
    return (char_class_table()[byte_to_char(static_cast<uint8_t>(text[at]))] & kNumericOfDigits) != 0;
  };
  for (const Piece& piece : pieces) {
    if (piece.token != kNoToken) {
      out.push_back(piece);
      continue;
    }
    uint32_t begin = piece.begin;
    for (uint32_t at = piece.begin + 1; at < piece.end; ++at) {
      const bool here = numeric(at);
      if (here != numeric(at - 1) || (here && step.individual_digits)) {
        out.push_back({begin, at, kNoToken});
        begin = at;
      }
    }
    out.push_back({begin, piece.end, kNoToken});
  }
}

class Encoder {
 public:
  Encoder(const TokenizerState& state, std::string_view text, EncodeOptions options)
      : state_(state), text_(text), options_(options), table_(state.memory.table(text.size())) {}

  Result<Encoding> run() {
    std::vector<Piece> pieces;
    state_.added.find(text_, 0, text_.size(), false, options_.specials_as_text, pieces);
    out_.ids.reserve(text_.size() / 4 + 8);
    out_.offsets.reserve(text_.size() / 4 + 8);
    for (const Piece& piece : pieces) {
      if (piece.token != kNoToken) {
        emit(piece.token, {piece.begin, piece.end}, text_.substr(piece.begin, piece.end - piece.begin));
      } else {
        TARE_TRY(encode_text(piece));
      }
    }
    post_process();
    return std::move(out_);
  }

 private:
  void emit(TokenId id, ByteRange range, std::string_view surface) {
    out_.ids.push_back(id);
    out_.offsets.push_back(range);
    if (trims_) surfaces_.emplace_back(surface);
  }

  Status encode_text(const Piece& segment) {
    if (!state_.cuts_into_words || !table_) return encode_part(segment, state_.parts.normalizer);
    const auto kind = options_.specials_as_text ? WordTable::Kind::kWordSpecialsAsText : WordTable::Kind::kWord;
    for (uint32_t at = segment.begin; at < segment.end;) {
      const auto end = static_cast<uint32_t>(word_end(text_, at, segment.end));
      const Piece part{at, end, kNoToken};
      if (at == segment.begin) {
        TARE_TRY(encode_part(part, state_.parts.normalizer));
      } else if (end - at > WordTable::kLongest) {
        TARE_TRY(encode_part(part, state_.continuation));
      } else {
        const WordTable::Key key(kind, text_.substr(at, end - at));
        const bool known = table_->find(key, [&](const WordToken& token) {
          out_.ids.push_back(token.id);
          out_.offsets.push_back({at + token.begin, at + token.end});
        });
        if (!known) TARE_TRY(encode_word(key, part));
      }
      at = end;
    }
    return {};
  }

  // A word behind the first, which is remembered.
  Status encode_word(const WordTable::Key& key, const Piece& part) {
    const size_t first = out_.ids.size();
    const size_t dropped = out_.dropped_bytes;
    const std::string_view word = text_.substr(part.begin, part.end - part.begin);
    if (!state_.plain_words.holds(word)) {
      TARE_TRY(encode_part(part, state_.continuation));
    } else if (state_.direct) {
      encode_plain(part, word);
    } else {
      TARE_TRY(encode_marked(part, word));
    }
    const size_t count = out_.ids.size() - first;
    if (out_.dropped_bytes != dropped || count > WordTable::kMostTokens) return {};
    std::array<WordToken, WordTable::kMostTokens> tokens;
    for (size_t i = 0; i < count; ++i) {
      const ByteRange range = out_.offsets[first + i];
      if (range.begin < part.begin || range.end < range.begin || range.end > part.end) return {};
      tokens[i] = {out_.ids[first + i], static_cast<uint8_t>(range.begin - part.begin),
                   static_cast<uint8_t>(range.end - part.begin)};
    }
    remember(key, {tokens.data(), count});
    return {};
  }

  void remember(const WordTable::Key& key, std::span<const WordToken> tokens) {
    table_->put(key, tokens);
    if (table_->is_worn()) table_ = state_.memory.table(text_.size());
  }

  // A plain word of a model that works on the text itself: one piece.
  void encode_plain(const Piece& part, std::string_view word) {
    spans_.clear();
    std::get<Bpe>(state_.parts.model).encode_bytes(word, spans_, out_.dropped_bytes);
    uint32_t at = part.begin;
    for (const TokenSpan& span : spans_) {
      out_.ids.push_back(span.id);
      out_.offsets.push_back({at, at + span.bytes});
      at += span.bytes;
    }
  }

  // A plain word of a model with marks: its text is known without the pipeline.
  Status encode_marked(const Piece& part, std::string_view word) {
    const std::string& mark = state_.plain_words.mark;
    const auto mark_bytes = static_cast<uint32_t>(mark.size());
    std::array<char, WordTable::kLongest + 8> buffer;
    std::copy(mark.begin(), mark.end(), buffer.begin());
    std::copy(word.begin() + 1, word.end(), buffer.begin() + mark_bytes);
    spans_.clear();
    TARE_TRY(encode_piece({buffer.data(), mark_bytes + word.size() - 1}, spans_, out_.dropped_bytes));
    const auto source_of = [&](uint32_t at) -> uint32_t {
      return part.begin + (at < mark_bytes ? state_.plain_words.mark_source : at - mark_bytes + 1);
    };
    ByteRange range;
    uint32_t at = 0;
    for (const TokenSpan& span : spans_) {
      if (span.bytes != 0) range = {source_of(at), source_of(at + span.bytes - 1) + 1};
      at += span.bytes;
      out_.ids.push_back(span.id);
      out_.offsets.push_back(range);
    }
    return {};
  }

  // The model alone, on a text whose characters are those of the vocabulary.
  Status encode_piece(std::string_view piece, std::vector<TokenSpan>& out, size_t& dropped) const {
    if (const auto* bpe = std::get_if<Bpe>(&state_.parts.model)) {
      bpe->encode_chars(state_.parts.vocabulary, piece, out, dropped);
      return {};
    }
    return std::get<Unigram>(state_.parts.model).encode(state_.parts.vocabulary, piece, out);
  }

  // Appends the tokens of a piece to spans_, computed by compute(piece, out, dropped) unless remembered.
  template <class Compute>
  Status spans_of(std::string_view piece, Compute compute) {
    if (!table_ || piece.size() > WordTable::kLongest) return compute(piece, spans_, out_.dropped_bytes);
    const WordTable::Key key(WordTable::Kind::kPiece, piece);
    const bool known = table_->find(key, [&](const WordToken& token) {
      spans_.push_back({token.id, static_cast<uint32_t>(token.end - token.begin)});
    });
    if (known) return {};
    const size_t first = spans_.size();
    const size_t dropped = out_.dropped_bytes;
    TARE_TRY(compute(piece, spans_, out_.dropped_bytes));
    const size_t count = spans_.size() - first;
    if (out_.dropped_bytes != dropped || count > WordTable::kMostTokens) return {};
    std::array<WordToken, WordTable::kMostTokens> tokens;
    uint32_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<uint8_t>(at);
      at += spans_[first + i].bytes;
      tokens[i] = {spans_[first + i].id, begin, static_cast<uint8_t>(at)};
    }
    remember(key, {tokens.data(), count});
    return {};
  }

  Status encode_part(const Piece& segment, const Normalizer& normalizer) {
    const std::string_view original = text_.substr(segment.begin, segment.end - segment.begin);
    if (state_.direct && leaves_unchanged(normalizer, original)) {
      return encode_direct(text_, segment, nullptr);
    }
    AlignedText text;
    text.append_original(original, segment.begin);
    TARE_TRY(normalize(normalizer, text, segment.begin));
    if (text.text.size() > UINT32_MAX / 2) {
      return invalid_input("text too long after normalization", {.found = fmt::format("{} bytes", text.text.size())});
    }
    if (text.text.empty()) return {};
    if (state_.direct) return encode_direct(text.text, {0, static_cast<uint32_t>(text.text.size()), kNoToken}, &text);
    return encode_aligned(text);
  }

  // Cuts the text itself and gives its bytes to the model. `aligned`: where the text comes from, if it is not text_.
  Status encode_direct(std::string_view text, const Piece& segment, const AlignedText* aligned) {
    const auto& bpe = std::get<Bpe>(state_.parts.model);
    const auto source_of = [&](uint32_t begin, uint32_t end) -> ByteRange {
      if (aligned) return aligned->source_of(begin, end);
      // Whole characters.
      while (begin > 0 && is_continuation(text[begin])) --begin;
      while (end < text.size() && is_continuation(text[end])) ++end;
      return {begin, end};
    };
    std::vector<Piece> pieces;
    state_.added.find(text, segment.begin, segment.end, true, options_.specials_as_text, pieces);
    std::vector<Piece> next;
    for (const PreTokenizerStep& step : state_.direct_steps) {
      next.clear();
      next.reserve((segment.end - segment.begin) / 4 + 4);
      TARE_TRY(split_pieces(step, text, pieces, next));
      std::swap(pieces, next);
    }
    for (const PreTokenizerStep& step : state_.direct_byte_steps) {
      next.clear();
      if (step.kind == PreTokenizerStep::Kind::kDigits) {
        split_byte_digits(step, text, pieces, next);
      } else {
        TARE_TRY(split_pieces(step, text, pieces, next));
      }
      std::swap(pieces, next);
    }
    const auto compute = [&](std::string_view word, std::vector<TokenSpan>& out, size_t& dropped) -> Status {
      bpe.encode_bytes(word, out, dropped);
      return {};
    };
    for (const Piece& piece : pieces) {
      if (piece.token != kNoToken) {
        emit(piece.token, source_of(piece.begin, piece.end), text.substr(piece.begin, piece.end - piece.begin));
        continue;
      }
      spans_.clear();
      TARE_TRY(spans_of(text.substr(piece.begin, piece.end - piece.begin), compute));
      uint32_t at = piece.begin;
      for (const TokenSpan& span : spans_) {
        const uint32_t begin = at;
        at += span.bytes;
        out_.ids.push_back(span.id);
        out_.offsets.push_back(source_of(begin, at));
        if (trims_) surfaces_.emplace_back(state_.text_of(span.id));
      }
    }
    return {};
  }

  Status encode_aligned(AlignedText& text) {
    std::vector<Piece> pieces;
    state_.added.find(text.text, 0, text.text.size(), true, options_.specials_as_text, pieces);
    TARE_TRY(pre_tokenize(state_.parts.pre_tokenizer, text, pieces));
    const auto compute = [&](std::string_view word, std::vector<TokenSpan>& out, size_t& dropped) -> Status {
      return encode_piece(word, out, dropped);
    };
    for (const Piece& piece : pieces) {
      const std::string_view here = std::string_view(text.text).substr(piece.begin, piece.end - piece.begin);
      if (piece.token != kNoToken) {
        if (here.empty()) continue;
        emit(piece.token, text.source_of(piece.begin, piece.end), here);
        continue;
      }
      spans_.clear();
      for (size_t at = 0; at < here.size();) {
        const size_t end = next_cut(here, at);
        TARE_TRY(spans_of(here.substr(at, end - at), compute));
        at = end;
      }
      ByteRange range;
      size_t at = piece.begin;
      for (const TokenSpan& span : spans_) {
        if (span.bytes != 0) {
          const size_t end = std::min<size_t>(at + span.bytes, piece.end);
          if (end > at) range = text.source_of(at, end);
          at = end;
        }
        emit(span.id, range, trims_ ? state_.text_of(span.id) : std::string_view());
      }
    }
    return {};
  }

  // End of the part that can be encoded by itself: before a mark that follows something else.
  size_t next_cut(std::string_view text, size_t at) const {
    const std::string& mark = state_.cut_mark;
    if (mark.empty()) return text.size();
    while (text.substr(at).starts_with(mark)) at += mark.size();
    return std::min(text.find(mark, at), text.size());
  }

  void post_process() {
    for (const PostProcessorStep& step : state_.parts.post_processor) {
      if (step.kind == PostProcessorStep::Kind::kTrimOffsets) {
        trim_offsets(step);
        continue;
      }
      Encoding framed;
      framed.dropped_bytes = out_.dropped_bytes;
      for (const PostProcessorStep::Part& part : step.parts) {
        if (part.text) {
          framed.ids.insert(framed.ids.end(), out_.ids.begin(), out_.ids.end());
          framed.offsets.insert(framed.offsets.end(), out_.offsets.begin(), out_.offsets.end());
        } else if (options_.add_special) {
          framed.ids.insert(framed.ids.end(), part.ids.begin(), part.ids.end());
          framed.offsets.insert(framed.offsets.end(), part.ids.size(), ByteRange{});
        }
      }
      out_ = std::move(framed);
    }
  }

  // White space at the ends of a token leaves its range; a single space in front of the first stays (it was added).
  void trim_offsets(const PostProcessorStep& step) {
    for (size_t i = 0; i < out_.ids.size() && i < surfaces_.size(); ++i) {
      const std::string_view surface = surfaces_[i];
      const auto is_space = [](char32_t c) { return c == byte_to_char(' ') || (char_classes(c) & kWhitespace); };
      size_t leading = 0;
      size_t trailing = 0;
      bool only = true;
      for (size_t at = 0; at < surface.size();) {
        const DecodedChar c = decode_char(surface.data(), at);
        at += c.bytes;
        if (is_space(c.value)) {
          if (only) ++leading;
          ++trailing;
        } else {
          only = false;
          trailing = 0;
        }
      }
      ByteRange& range = out_.offsets[i];
      if (leading > 0) {
        if ((i == 0 || range.begin == 0) && step.add_prefix_space && leading == 1) leading = 0;
        for (; leading > 0 && range.begin < range.end; --leading) range.begin += char_bytes(text_[range.begin]);
      }
      for (; trailing > 0 && range.end > range.begin; --trailing) {
        --range.end;
        while (range.end > range.begin && is_continuation(text_[range.end])) --range.end;
      }
    }
  }

  const TokenizerState& state_;
  std::string_view text_;
  EncodeOptions options_;
  std::shared_ptr<WordTable> table_;  // null: nothing is remembered
  Encoding out_;
  std::vector<TokenSpan> spans_;
  const bool trims_ = std::any_of(state_.parts.post_processor.begin(), state_.parts.post_processor.end(),
                                  [](const auto& step) { return step.kind == PostProcessorStep::Kind::kTrimOffsets; });
  std::vector<std::string> surfaces_;  // the text of each token as the trimming step sees it
};

}  // namespace

Result<Encoding> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > UINT32_MAX / 4) {
    return invalid_input("text too long",
                         {.expected = "less than 1 GiB", .found = fmt::format("{} bytes", text.size())});
  }
  if (const auto bad = find_invalid_utf8(text)) {
    return invalid_input("text is not UTF-8", {.where = fmt::format("byte {}", *bad)});
  }
  return Encoder(*state_, text, options).run();
}

}  // namespace tare::text
