#include "text/word_cuts.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "text/unicode.h"

namespace tare::text {

namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";

// By first byte: characters beside which a space stays by itself. No marks that could join it (U+0300.., U+0483..), no
// prepending ones (U+0600..), no white space.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> table{};
  for (int b = 0x21; b <= 0x7E; ++b) table[b] = true;
  for (int b = 0xC3; b <= 0xCA; ++b) table[b] = true;  // U+00C0..U+02BF
  for (int b = 0xCE; b <= 0xD1; ++b) table[b] = true;  // U+0380..U+047F
  for (int b = 0xE4; b <= 0xE9; ++b) table[b] = true;  // U+4000..U+9FFF
  return table;
}();

bool plain_before(std::string_view text, size_t at) {
  --at;
  while (at > 0 && is_continuation(text[at])) --at;
  return kPlain[static_cast<unsigned char>(text[at])];
}

// Rules that leave printed ASCII and the space as they are, alone and before each other.
bool keeps_ascii(const Charsmap& charsmap) {
  for (char first = 0x20; first < 0x7F; ++first) {
    for (char second = 0x20; second < 0x7F; ++second) {
      const char pair[] = {first, second};
      const Charsmap::Match match = charsmap.longest({pair, 2}, 0);
      if (match.bytes > 1 || (match.bytes == 1 && match.replacement != std::string_view(pair, 1))) return false;
    }
  }
  return true;
}

bool plan_normalizer(const Normalizer& normalizer, Normalizer& continuation) {
  using Kind = NormalizerStep::Kind;
  for (const NormalizerStep& step : normalizer) {
    switch (step.kind) {
      case Kind::kNfc:
      case Kind::kNfd:
      case Kind::kNfkc:
      case Kind::kNfkd:
      case Kind::kLowercase:
      case Kind::kStripAccents:
      case Kind::kNmt:
        continuation.push_back(step);
        break;
      case Kind::kPrepend:
        break;
      case Kind::kReplace: {
        // Single spaces to the mark, or runs of two and more, which no cut touches.
        const bool runs = step.regex && step.regex->pattern() == " {2,}";
        if (!runs && (step.regex || step.pattern != " " || step.content != kMark)) return false;
        continuation.push_back(step);
        break;
      }
      case Kind::kPrecompiled:
        if (!keeps_ascii(*step.charsmap)) return false;
        continuation.push_back(step);
        break;
      case Kind::kSentencePiece:
        if (step.remove_extra_whitespaces || step.whitespace_as_suffix || !step.escape_whitespaces) return false;
        if (step.charsmap && !keeps_ascii(*step.charsmap)) return false;
        continuation.push_back(step);
        continuation.back().add_dummy_prefix = false;
        break;
      default:
        return false;
    }
  }
  return true;
}

bool replaces_spaces(const Normalizer& normalizer) {
  return std::any_of(normalizer.begin(), normalizer.end(), [](const NormalizerStep& step) {
    return (step.kind == NormalizerStep::Kind::kReplace && !step.regex && step.pattern == " ") ||
           step.kind == NormalizerStep::Kind::kSentencePiece;
  });
}

// Patterns without a scanner whose matches begin at such a space or do not touch it.
bool is_known_pattern(const std::string& pattern) {
  constexpr std::string_view kKnown[] = {
      R"(\p{N}{1,3})", R"(\p{N})", "[一-龥぀-ゟ゠-ヿ]+",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  return std::find(std::begin(kKnown), std::end(kKnown), pattern) != std::end(kKnown);
}

// Whether all steps respect the cuts, and one of them (or the model) cuts there by itself.
bool plan_pre_tokenizer(const TokenizerState& state) {
  using Kind = PreTokenizerStep::Kind;
  bool cuts = !state.cut_mark.empty();
  for (const PreTokenizerStep& step : state.parts.pre_tokenizer) {
    switch (step.kind) {
      case Kind::kDigits:
      case Kind::kPunctuation:
        break;
      case Kind::kWhitespaceSplit:
        cuts = true;
        break;
      case Kind::kMetaspace:
        if (step.literal != kMark) return false;
        cuts = cuts || step.split;
        break;
      case Kind::kByteLevel:
        cuts = cuts || step.use_regex;
        break;
      case Kind::kSplit: {
        if (step.literal == " " && replaces_spaces(state.continuation)) break;  // finds none any more
        const bool isolated = step.behavior == SplitBehavior::kIsolated && !step.invert;
        const bool kept = step.behavior == SplitBehavior::kRemoved && step.invert;
        if (!isolated && !kept) return false;
        if (step.scanner) {
          cuts = cuts || step.scanner->kind != Scanner::Kind::kThreeDigits;
        } else if (step.regex && is_known_pattern(escaped_newlines(step.regex->pattern()))) {
          cuts = cuts || step.regex->pattern().find(R"(\s+(?!\S))") != std::string::npos;
        } else {
          return false;
        }
        break;
      }
      default:
        return false;
    }
  }
  return cuts;
}

// No added token that is looked for behind normalization may lie across a cut or look at its neighbours.
bool plan_added(const TokenizerState& state) {
  // Whether they are looked for in a text whose spaces have become marks.
  const bool marks = replaces_spaces(state.continuation);
  for (size_t i = 0; i < state.parts.added.size(); ++i) {
    const AddedToken& token = state.parts.added[i];
    if (!token.normalized) continue;
    if (token.single_word || token.lstrip || token.rstrip) return false;
    std::string_view rest = state.added.decode_texts()[i];
    while (rest.starts_with(' ') || rest.starts_with(kMark)) rest.remove_prefix(rest[0] == ' ' ? 1 : kMark.size());
    if (rest.find(' ') != rest.npos || (marks && rest.find(kMark) != rest.npos)) return false;
  }
  return true;
}

// Whether the pipeline makes one piece of a space and printed ASCII, the space as it is or a mark in its place.
bool plan_plain(const TokenizerState& state, PlainWords& plain) {
  using Kind = NormalizerStep::Kind;
  if (state.direct) {
    // The patterns that plan_pre_tokenizer knows keep a space and letters together, if only the first is a capital.
    plain.letters_only = true;
    for (const PreTokenizerStep& step : state.direct_steps) {
      if (step.kind == PreTokenizerStep::Kind::kWhitespaceSplit) return false;
    }
    return leaves_unchanged(state.continuation, " a");
  }
  for (const NormalizerStep& step : state.continuation) {
    if (step.kind == Kind::kLowercase || step.kind == Kind::kStripAccents) return false;
  }
  for (const PreTokenizerStep& step : state.parts.pre_tokenizer) {
    const bool spaces_only =
        step.kind == PreTokenizerStep::Kind::kMetaspace || step.kind == PreTokenizerStep::Kind::kWhitespaceSplit ||
        (step.kind == PreTokenizerStep::Kind::kSplit && step.literal == " " && !step.regex && !step.scanner);
    if (!spaces_only) return false;
  }
  // What comes of the space is the same for all of them: look at one.
  constexpr uint32_t kBegin = 10;
  AlignedText text;
  text.append_original(" a", kBegin);
  if (!normalize(state.continuation, text, kBegin).ok()) return false;
  std::vector<Piece> pieces = {{0, static_cast<uint32_t>(text.text.size()), kNoToken}};
  if (!pre_tokenize(state.parts.pre_tokenizer, text, pieces).ok() || pieces.size() != 1) return false;
  const size_t bytes = kMark.size() + 1;
  if (text.text != std::string(kMark) + "a" || pieces[0].begin != 0 || pieces[0].end != bytes) return false;
  const ByteRange mark = text.source[0];
  for (size_t i = 0; i < bytes; ++i) {
    if (!(text.source[i] == (i < kMark.size() ? mark : ByteRange{kBegin + 1, kBegin + 2}))) return false;
  }
  if (mark.end != mark.begin + 1 || mark.begin < kBegin || mark.end > kBegin + 2) return false;
  plain.mark = kMark;
  plain.mark_source = mark.begin - kBegin;
  return true;
}

}  // namespace

void plan_words(TokenizerState& state) {
  state.continuation.clear();
  state.cuts_into_words =
      plan_normalizer(state.parts.normalizer, state.continuation) && plan_pre_tokenizer(state) && plan_added(state);
  for (const PostProcessorStep& step : state.parts.post_processor) {
    // Trimming looks at the whole list of tokens.
    if (step.kind == PostProcessorStep::Kind::kTrimOffsets) state.cuts_into_words = false;
  }
  state.plain_words = {};
  PlainWords plain;
  if (!state.cuts_into_words || !plan_plain(state, plain)) return;
  // No added token that is looked for behind normalization may begin in such a word.
  const auto starts = [&](char c) { return state.added.starts_normalized(c); };
  if (starts(' ') || starts('\xE2')) return;
  for (char c = 0x21; c < 0x7F; ++c) {
    const bool small = c >= 'a' && c <= 'z';
    const bool capital = c >= 'A' && c <= 'Z';
    plain.first[static_cast<unsigned char>(c)] = (small || capital || !plain.letters_only) && !starts(c);
    plain.other[static_cast<unsigned char>(c)] = (small || !plain.letters_only) && !starts(c);
  }
  state.plain_words = plain;
}

size_t word_end(std::string_view text, size_t at, size_t end) {
  for (size_t space = at + 1; space + 1 < end; ++space) {
    const void* found = std::memchr(text.data() + space, ' ', end - space);
    if (!found) return end;
    space = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    if (space + 1 < end && kPlain[static_cast<unsigned char>(text[space + 1])] && plain_before(text, space))
      return space;
  }
  return end;
}

}  // namespace tare::text
