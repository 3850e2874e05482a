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

}  // namespace

void plan_words(TokenizerState& state) {
  state.continuation.clear();
  state.cuts_into_words =
      plan_normalizer(state.parts.normalizer, state.continuation) && plan_pre_tokenizer(state) && plan_added(state);
  for (const PostProcessorStep& step : state.parts.post_processor) {
    // Trimming looks at the whole list of tokens.
    if (step.kind == PostProcessorStep::Kind::kTrimOffsets) state.cuts_into_words = false;
  }
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
