#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/unicode.h"

namespace tare::text {

namespace {

struct Part {
  size_t begin, end;
  bool match;
};

// Matches and what lies between them, in order, covering [begin,end).
class Parts {
 public:
  Parts(std::vector<Part>& out, size_t begin, size_t end, bool invert)
      : out_(out), last_(begin), end_(end), invert_(invert) {}
  void match(size_t begin, size_t end) {
    if (last_ != begin) out_.push_back({last_, begin, invert_});
    out_.push_back({begin, end, !invert_});
    last_ = end;
  }
  void finish() {
    if (last_ != end_) out_.push_back({last_, end_, invert_});
  }

 private:
  std::vector<Part>& out_;
  size_t last_, end_;
  bool invert_;
};

// Each character of a class is a match of its own.
void match_chars(std::string_view text, const Piece& piece, uint32_t classes, Parts& parts) {
  for (size_t at = piece.begin; at < piece.end;) {
    const DecodedChar c = decode_char(text.data(), at);
    if (char_classes(c.value) & classes) parts.match(at, at + c.bytes);
    at += c.bytes;
  }
}

Status find_parts(const PreTokenizerStep& step, std::string_view text, const Piece& piece,
                  std::vector<RegexMatch>& matches, std::vector<Part>& out) {
  Parts parts(out, piece.begin, piece.end, step.invert);
  switch (step.kind) {
    case PreTokenizerStep::Kind::kDigits:
      match_chars(text, piece, kNumericOfDigits, parts);
      break;
    case PreTokenizerStep::Kind::kPunctuation:
      match_chars(text, piece, kSplitPunctuation, parts);
      break;
    case PreTokenizerStep::Kind::kWhitespaceSplit:
      match_chars(text, piece, kWhitespace, parts);
      break;
    case PreTokenizerStep::Kind::kDelimiter:
    case PreTokenizerStep::Kind::kSplit:
    case PreTokenizerStep::Kind::kWhitespace:
      if (step.scanner) {
        for (size_t at = piece.begin; at < piece.end;) {
          const size_t end = scan(*step.scanner, text.data(), at, piece.end);
          if (end > at) {
            parts.match(at, end);
            at = end;
          } else {
            ++at;
          }
        }
      } else if (step.regex) {
        matches.clear();
        TARE_TRY(step.regex->find_all(text, piece.begin, piece.end, matches));
        for (const RegexMatch& match : matches) parts.match(match.begin, match.end);
      } else if (!step.literal.empty()) {
        const std::string_view here = text.substr(0, piece.end);
        for (size_t at = here.find(step.literal, piece.begin); at != here.npos;
             at = here.find(step.literal, at + step.literal.size())) {
          parts.match(at, at + step.literal.size());
        }
      }
      break;
    default:
      break;
  }
  parts.finish();
  return {};
}

void put(std::vector<Piece>& out, size_t begin, size_t end) {
  if (begin < end) out.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), kNoToken});
}

// The behaviours, as the tokenizers library folds them.
void cut(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Piece>& out) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) put(out, part.begin, part.end);
      return;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.match) put(out, part.begin, part.end);
      }
      return;
    case SplitBehavior::kContiguous: {
      bool previous = false;
      std::vector<Part> joined;
      for (const Part& part : parts) {
        if (part.match == previous && !joined.empty()) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous = part.match;
      }
      for (const Part& part : joined) put(out, part.begin, part.end);
      return;
    }
    case SplitBehavior::kMergedWithPrevious: {
      bool previous = false;
      std::vector<Part> joined;
      for (const Part& part : parts) {
        if (part.match && !previous && !joined.empty()) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous = part.match;
      }
      for (const Part& part : joined) put(out, part.begin, part.end);
      return;
    }
    case SplitBehavior::kMergedWithNext: {
      bool previous = false;
      std::vector<Part> joined;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous && !joined.empty()) {
          joined.back().begin = part->begin;
        } else {
          joined.push_back(*part);
        }
        previous = part->match;
      }
      for (auto part = joined.rbegin(); part != joined.rend(); ++part) put(out, part->begin, part->end);
      return;
    }
  }
}

const Scanner kGpt2Scanner{.kind = Scanner::Kind::kGpt2};

// Rebuilds text and pieces; change(piece, out) appends what becomes of one piece that is no token.
template <class Change>
void rebuild(AlignedText& text, std::vector<Piece>& pieces, size_t growth, Change change) {
  AlignedText out;
  out.text.reserve(text.text.size() * growth);
  out.source.reserve(text.text.size() * growth);
  for (Piece& piece : pieces) {
    const auto begin = static_cast<uint32_t>(out.text.size());
    if (piece.token != kNoToken) {
      out.append(text, piece.begin, piece.end);
    } else {
      change(piece, out);
    }
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(out.text.size());
  }
  text = std::move(out);
}

void split_gpt2(std::string_view text, const std::vector<Piece>& pieces, std::vector<Piece>& out) {
  for (const Piece& piece : pieces) {
    if (piece.token != kNoToken) {
      out.push_back(piece);
      continue;
    }
    for (size_t at = piece.begin; at < piece.end;) {
      const size_t end = scan(kGpt2Scanner, text.data(), at, piece.end);
      put(out, at, end);
      at = end;
    }
  }
}

Status byte_level(const PreTokenizerStep& step, AlignedText& text, std::vector<Piece>& pieces) {
  if (step.add_prefix_space) {
    rebuild(text, pieces, 1, [&](const Piece& piece, AlignedText& out) {
      if (text.text[piece.begin] != ' ') out.append(" ", text.source[piece.begin]);
      out.append(text, piece.begin, piece.end);
    });
  }
  if (step.use_regex) {
    std::vector<Piece> cut_pieces;
    split_gpt2(text.text, pieces, cut_pieces);
    pieces = std::move(cut_pieces);
  }
  rebuild(text, pieces, 2, [&](const Piece& piece, AlignedText& out) {
    // Every byte of a character comes from what the character's first byte came from.
    for (size_t at = piece.begin; at < piece.end; ++at) {
      const size_t before = out.text.size();
      append_utf8(out.text, byte_to_char(static_cast<uint8_t>(text.text[at])));
      out.source.insert(out.source.end(), out.text.size() - before, text.source[at]);
    }
  });
  return {};
}

Status metaspace(const PreTokenizerStep& step, AlignedText& text, std::vector<Piece>& pieces) {
  rebuild(text, pieces, 2, [&](const Piece& piece, AlignedText& out) {
    const std::string_view here = std::string_view(text.text).substr(piece.begin, piece.end - piece.begin);
    const bool has_mark = here.starts_with(step.literal) || here.starts_with(' ');
    const bool prefix = !has_mark && (step.prepend == PrependScheme::kAlways ||
                                      (step.prepend == PrependScheme::kFirst && text.source[piece.begin].begin == 0));
    if (prefix) out.append(step.literal, text.source[piece.begin]);
    for (size_t at = piece.begin; at < piece.end;) {
      const size_t space = std::min<size_t>(here.find(' ', at - piece.begin), here.size()) + piece.begin;
      out.append(text, at, space);
      if (space < piece.end) out.append(step.literal, text.source[space]);
      at = space + 1;
    }
  });
  if (!step.split) return {};
  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::kSplit;
  split.literal = step.literal;
  split.behavior = SplitBehavior::kMergedWithNext;
  std::vector<Piece> out;
  TARE_TRY(split_pieces(split, text.text, pieces, out));
  pieces = std::move(out);
  return {};
}

}  // namespace

bool only_splits(const PreTokenizerStep& step) {
  return step.kind != PreTokenizerStep::Kind::kByteLevel && step.kind != PreTokenizerStep::Kind::kMetaspace;
}

Status split_pieces(const PreTokenizerStep& step, std::string_view text, const std::vector<Piece>& pieces,
                    std::vector<Piece>& out) {
  std::vector<Part> parts;
  std::vector<RegexMatch> matches;
  // A scanner that matches everything, each match a piece: no list in between.
  const bool direct = step.kind == PreTokenizerStep::Kind::kSplit && step.scanner && !step.invert &&
                      step.behavior == SplitBehavior::kIsolated;
  for (const Piece& piece : pieces) {
    if (piece.token != kNoToken) {
      out.push_back(piece);
      continue;
    }
    if (direct) {
      size_t start = piece.begin;
      for (size_t at = piece.begin; at < piece.end;) {
        const size_t end = scan(*step.scanner, text.data(), at, piece.end);
        if (end > at) {
          put(out, start, at);
          put(out, at, end);
          start = at = end;
        } else {
          ++at;  // only [0-9][0-9][0-9] leaves gaps, and no part of a longer character looks like a digit
        }
      }
      put(out, start, piece.end);
      continue;
    }
    if (step.kind == PreTokenizerStep::Kind::kFixedLength) {
      size_t begin = piece.begin;
      size_t characters = 0;
      for (size_t at = piece.begin; at < piece.end; at += char_bytes(text[at])) {
        if (characters == step.length) {
          put(out, begin, at);
          begin = at;
          characters = 0;
        }
        ++characters;
      }
      put(out, begin, piece.end);
      continue;
    }
    if (step.kind == PreTokenizerStep::Kind::kBert) {
      size_t begin = piece.begin;
      for (size_t at = piece.begin; at < piece.end;) {
        const DecodedChar c = decode_char(text.data(), at);
        const uint32_t classes = char_classes(c.value);
        if (classes & (kWhitespace | kSplitPunctuation)) {
          put(out, begin, at);
          if (!(classes & kWhitespace)) put(out, at, at + c.bytes);
          begin = at + c.bytes;
        }
        at += c.bytes;
      }
      put(out, begin, piece.end);
      continue;
    }
    parts.clear();
    TARE_TRY(find_parts(step, text, piece, matches, parts));
    SplitBehavior behavior = step.behavior;
    if (step.kind == PreTokenizerStep::Kind::kDigits) {
      behavior = step.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    } else if (step.kind == PreTokenizerStep::Kind::kWhitespaceSplit ||
               step.kind == PreTokenizerStep::Kind::kDelimiter) {
      behavior = SplitBehavior::kRemoved;
    } else if (step.kind == PreTokenizerStep::Kind::kWhitespace) {
      for (Part& part : parts) part.match = !part.match;
      behavior = SplitBehavior::kRemoved;
    }
    cut(parts, behavior, out);
  }
  return {};
}

Status pre_tokenize(const PreTokenizer& steps, AlignedText& text, std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  for (const PreTokenizerStep& step : steps) {
    if (step.kind == PreTokenizerStep::Kind::kByteLevel) {
      TARE_TRY(byte_level(step, text, pieces));
    } else if (step.kind == PreTokenizerStep::Kind::kMetaspace) {
      TARE_TRY(metaspace(step, text, pieces));
    } else {
      out.clear();
      TARE_TRY(split_pieces(step, text.text, pieces, out));
      std::swap(pieces, out);
    }
  }
  return {};
}

}  // namespace tare::text
