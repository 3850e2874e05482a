#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode.h"
#include "text/unicode_normalization.h"

namespace tare::text {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::vector<std::pair<size_t, size_t>> find_literal(std::string_view text, std::string_view pattern) {
  std::vector<std::pair<size_t, size_t>> out;
  for (size_t at = text.find(pattern); !pattern.empty() && at != text.npos;
       at = text.find(pattern, at + pattern.size())) {
    out.emplace_back(at, at + pattern.size());
  }
  return out;
}

template <class Keep>
void filter(AlignedText& text, uint32_t base, Keep keep) {
  std::vector<ChangedChar> changed;
  size_t dropped_first = 0;
  int removed = 0;
  bool any = false;
  for (size_t at = 0; at < text.text.size();) {
    const DecodedChar c = decode_char(text.text.data(), at);
    at += c.bytes;
    if (keep(c.value)) {
      if (changed.empty()) {
        dropped_first = static_cast<size_t>(removed);
      } else {
        changed.back().change = -removed;
      }
      changed.push_back({c.value, 0});
      removed = 0;
    } else {
      ++removed;
      any = true;
    }
  }
  if (!any) return;
  if (!changed.empty()) changed.back().change = -removed;
  text.transform(changed, dropped_first, base);
}

template <class Map>
void map_chars(AlignedText& text, uint32_t base, Map map) {
  std::vector<ChangedChar> changed;
  for (size_t at = 0; at < text.text.size();) {
    const DecodedChar c = decode_char(text.text.data(), at);
    at += c.bytes;
    changed.push_back({map(c.value), 0});
  }
  text.transform(changed, 0, base);
}

void lowercase(AlignedText& text, uint32_t base) {
  std::vector<ChangedChar> changed;
  std::u32string lower;
  for (size_t at = 0; at < text.text.size();) {
    const DecodedChar c = decode_char(text.text.data(), at);
    at += c.bytes;
    lower.clear();
    append_lowercase(lower, c.value);
    for (size_t i = 0; i < lower.size(); ++i) changed.push_back({lower[i], i > 0});
  }
  text.transform(changed, 0, base);
}

void strip(AlignedText& text, bool left, bool right) {
  const std::string_view all = text.text;
  size_t begin = 0;
  size_t end = all.size();
  while (left && begin < end) {
    const DecodedChar c = decode_char(all.data(), begin);
    if (!(char_classes(c.value) & kWhitespace)) break;
    begin += c.bytes;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && is_continuation(all[last])) --last;
    if (!(char_classes(decode_char(all.data(), last).value) & kWhitespace)) break;
    end = last;
  }
  if (begin == 0 && end == all.size()) return;
  AlignedText out;
  out.append(text, begin, end);
  text = std::move(out);
}

bool nmt_removes(char32_t c) {
  return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

char32_t nmt_maps(char32_t c) {
  switch (c) {
    case 0x9:
    case 0xA:
    case 0xC:
    case 0xD:
    case 0x1680:
    case 0x200B:
    case 0x200C:
    case 0x200D:
    case 0x200E:
    case 0x200F:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xFEFF:
    case 0xFFFD:
      return ' ';
    default:
      return c;
  }
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void bert(const NormalizerStep& step, AlignedText& text, uint32_t base) {
  const auto category = [](char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); };
  if (step.bert_clean_text) {
    filter(text, base, [&](char32_t c) {
      if (c == 0 || c == 0xFFFD) return false;
      if (c == '\t' || c == '\n' || c == '\r') return true;
      const auto k = category(c);
      return !(k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO);
    });
    map_chars(text, base, [](char32_t c) { return char_classes(c) & kWhitespace ? U' ' : c; });
  }
  if (step.bert_chinese) {
    std::vector<ChangedChar> changed;
    for (size_t at = 0; at < text.text.size();) {
      const DecodedChar c = decode_char(text.text.data(), at);
      at += c.bytes;
      if (is_chinese(c.value)) {
        changed.push_back({' ', 0});
        changed.push_back({c.value, 1});
        changed.push_back({' ', 1});
      } else {
        changed.push_back({c.value, 0});
      }
    }
    text.transform(changed, 0, base);
  }
  if (step.bert_strip_accents) {
    normalize_unicode(text, UnicodeForm::kNfd, base);
    filter(text, base, [&](char32_t c) { return category(c) != UTF8PROC_CATEGORY_MN; });
  }
  if (step.bert_lowercase) lowercase(text, base);
}

void byte_level(AlignedText& text, uint32_t base) {
  std::vector<ChangedChar> changed;
  changed.reserve(text.text.size());
  for (const char byte : text.text) {
    changed.push_back({byte_to_char(static_cast<uint8_t>(byte)), is_continuation(byte)});
  }
  text.transform(changed, 0, base);
}

// NFC where it may change something: at characters that may compose or decompose and the one before them. The rest,
// which is nearly everything, is copied.
void compose_in_place(AlignedText& text, uint32_t base) {
  const std::string_view all = text.text;
  const auto may_change = [&](size_t at) {
    return static_cast<unsigned char>(all[at]) >= 0xCC &&  // below U+0300 nothing changes
           (char_classes(decode_char(all.data(), at).value) & kNormalizes);
  };
  AlignedText out;
  size_t done = 0;
  size_t before = 0;  // start of the character before `at`
  for (size_t at = 0; at < all.size();) {
    if (!may_change(at)) {
      before = at;
      at += char_bytes(all[at]);
      continue;
    }
    const size_t begin = std::max(done, std::min(before, at));
    size_t end = at;
    while (end < all.size() && may_change(end)) end += char_bytes(all[end]);
    AlignedText part;
    part.append(text, begin, end);
    normalize_unicode(part, UnicodeForm::kNfc, base);
    if (out.text.empty()) {
      out.text.reserve(all.size());
      out.source.reserve(all.size());
    }
    out.append(text, done, begin);
    out.append(part, 0, part.text.size());
    done = before = at = end;
  }
  if (done == 0) return;
  out.append(text, done, all.size());
  text = std::move(out);
}

// The tokenizers library looks rules up by grapheme cluster (below 6 bytes), else by character, and replaces the whole
// of it by the shortest rule it starts with.
void precompiled(const Charsmap& charsmap, AlignedText& text, uint32_t base) {
  std::vector<ChangedChar> changed;
  bool modified = false;
  const std::string_view all = text.text;
  const auto characters = [](std::string_view part) {
    return static_cast<int>(std::count_if(part.begin(), part.end(), [](char c) { return !is_continuation(c); }));
  };
  const auto put = [&](std::string_view old, std::string_view replacement) {
    modified = true;
    const int difference = characters(replacement) - characters(old);
    for (size_t at = 0; at < replacement.size();) {
      const DecodedChar c = decode_char(replacement.data(), at);
      at += c.bytes;
      changed.push_back({c.value, 0});
    }
    if (difference > 0) {
      for (int i = 0; i < difference; ++i) changed[changed.size() - 1 - static_cast<size_t>(i)].change = 1;
    } else if (difference < 0 && !changed.empty()) {
      changed.back().change += difference;
    }
  };
  // An ASCII character before another (or the end) is a cluster of its own, but for \r\n; most have no rule.
  if (std::all_of(all.begin(), all.end(), [&](char c) { return charsmap.is_plain(static_cast<unsigned char>(c)); })) {
    return;
  }
  const auto is_ascii = [&](size_t at) { return at >= all.size() || static_cast<unsigned char>(all[at]) < 0x80; };
  changed.reserve(all.size());
  for (size_t begin = 0; begin < all.size();) {
    if (is_ascii(begin) && is_ascii(begin + 1) && charsmap.is_plain(static_cast<unsigned char>(all[begin]))) {
      changed.push_back({static_cast<char32_t>(all[begin]), 0});
      ++begin;
      continue;
    }
    DecodedChar c = decode_char(all.data(), begin);
    size_t end = begin + c.bytes;
    utf8proc_int32_t state = 0;
    while (end < all.size()) {
      const DecodedChar next = decode_char(all.data(), end);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.value),
                                           static_cast<utf8proc_int32_t>(next.value), &state)) {
        break;
      }
      end += next.bytes;
      c = next;
    }
    const std::string_view cluster = all.substr(begin, end - begin);
    Charsmap::Match match;
    if (cluster.size() < 6) match = charsmap.shortest(cluster);
    if (match.bytes != 0) {
      put(cluster, match.replacement);
    } else {
      for (size_t at = begin; at < end;) {
        const DecodedChar part = decode_char(all.data(), at);
        match = charsmap.shortest(all.substr(at, part.bytes));
        if (match.bytes != 0) {
          put(all.substr(at, part.bytes), match.replacement);
        } else {
          changed.push_back({part.value, 0});
        }
        at += part.bytes;
      }
    }
    begin = end;
  }
  if (modified) text.transform(changed, 0, base);
}

// SentencePiece: rules by longest match, then spaces: runs shortened, ends trimmed, one put in front, U+2581 for each.
void sentence_piece(const NormalizerStep& step, AlignedText& text) {
  const std::string_view all = text.text;
  AlignedText out;
  struct Next {
    size_t bytes;
    std::string_view text;
  };
  const auto next_at = [&](size_t at) -> Next {
    if (step.protected_text) {
      if (const Trie::Match user = step.protected_text->longest(all, at); user.bytes != 0) {
        return {user.bytes, all.substr(at, user.bytes)};
      }
    }
    if (step.charsmap) {
      if (const Charsmap::Match rule = step.charsmap->longest(all, at); rule.bytes != 0)
        return {rule.bytes, rule.replacement};
    }
    const uint32_t bytes = char_bytes(all[at]);
    return {bytes, all.substr(at, bytes)};
  };
  const std::string_view space = step.escape_whitespaces ? kSpaceMark : std::string_view(" ");
  size_t at = 0;
  if (step.remove_extra_whitespaces) {
    while (at < all.size()) {
      const Next next = next_at(at);
      if (next.text != " ") break;
      at += next.bytes;
    }
  }
  if (at == all.size()) {
    text = std::move(out);
    return;
  }
  if (!step.whitespace_as_suffix && step.add_dummy_prefix) out.append(space, text.source[at]);
  bool after_space = step.remove_extra_whitespaces;
  while (at < all.size()) {
    const Next next = next_at(at);
    const ByteRange from = text.source_of(at, at + next.bytes);
    std::string_view put = next.text;
    while (after_space && put.starts_with(' ')) put.remove_prefix(1);
    if (!put.empty()) {
      for (const char c : put) {
        if (c == ' ') {
          out.append(space, from);
        } else {
          out.append(std::string_view(&c, 1), from);
        }
      }
      after_space = put.back() == ' ';
    }
    at += next.bytes;
    if (!step.remove_extra_whitespaces) after_space = false;
  }
  if (step.remove_extra_whitespaces) {
    while (out.text.ends_with(space)) {
      out.text.resize(out.text.size() - space.size());
      out.source.resize(out.text.size());
    }
  }
  if (step.whitespace_as_suffix && step.add_dummy_prefix) out.append(space, text.source.back());
  text = std::move(out);
}

}  // namespace

bool leaves_unchanged(const Normalizer& normalizer, std::string_view text) {
  for (const NormalizerStep& step : normalizer) {
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        for (size_t at = 0; at < text.size();) {
          const auto b = static_cast<unsigned char>(text[at]);
          if (b < 0xCC) {  // below U+0300 nothing changes
            at += b < 0x80 ? 1 : 2;
            continue;
          }
          const DecodedChar c = decode_char(text.data(), at);
          if (char_classes(c.value) & kNormalizes) return false;
          at += c.bytes;
        }
        break;
      case NormalizerStep::Kind::kReplace:
        if (step.regex || text.find(step.pattern) != text.npos) return false;
        break;
      default:
        return false;
    }
  }
  return true;
}

Status normalize(const Normalizer& normalizer, AlignedText& text, uint32_t base) {
  for (const NormalizerStep& step : normalizer) {
    if (text.text.empty()) return {};
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        compose_in_place(text, base);
        break;
      case NormalizerStep::Kind::kNfd:
        normalize_unicode(text, UnicodeForm::kNfd, base);
        break;
      case NormalizerStep::Kind::kNfkc:
        normalize_unicode(text, UnicodeForm::kNfkc, base);
        break;
      case NormalizerStep::Kind::kNfkd:
        normalize_unicode(text, UnicodeForm::kNfkd, base);
        break;
      case NormalizerStep::Kind::kPrepend: {
        const ByteRange first = text.source[0];
        text.text.insert(0, step.content);
        text.source.insert(text.source.begin(), step.content.size(), first);
        break;
      }
      case NormalizerStep::Kind::kReplace: {
        if (step.regex) {
          std::vector<RegexMatch> matches;
          TARE_TRY(step.regex->find_all(text.text, 0, text.text.size(), matches));
          std::vector<std::pair<size_t, size_t>> ranges;
          for (const RegexMatch& match : matches) ranges.emplace_back(match.begin, match.end);
          text.replace(ranges, step.content);
        } else {
          text.replace(find_literal(text.text, step.pattern), step.content);
        }
        break;
      }
      case NormalizerStep::Kind::kStrip:
        strip(text, step.strip_left, step.strip_right);
        break;
      case NormalizerStep::Kind::kStripAccents:
        filter(text, base, [](char32_t c) { return !(char_classes(c) & kMark); });
        break;
      case NormalizerStep::Kind::kLowercase:
        lowercase(text, base);
        break;
      case NormalizerStep::Kind::kNmt:
        filter(text, base, [](char32_t c) { return !nmt_removes(c); });
        map_chars(text, base, nmt_maps);
        break;
      case NormalizerStep::Kind::kBert:
        bert(step, text, base);
        break;
      case NormalizerStep::Kind::kPrecompiled:
        precompiled(*step.charsmap, text, base);
        break;
      case NormalizerStep::Kind::kByteLevel:
        byte_level(text, base);
        break;
      case NormalizerStep::Kind::kSentencePiece:
        sentence_piece(step, text);
        break;
    }
  }
  return {};
}

Result<std::string> normalize_text(const Normalizer& normalizer, std::string_view text) {
  AlignedText aligned;
  aligned.append_original(text, 0);
  TARE_TRY(normalize(normalizer, aligned, 0));
  return std::move(aligned.text);
}

}  // namespace tare::text
