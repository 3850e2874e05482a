#include "text/unicode_normalization.h"

#include <utf8proc.h>

#include <algorithm>
#include <optional>

#include "text/unicode.h"

namespace tare::text {

namespace {

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

std::optional<char32_t> compose(char32_t first, char32_t second) {
  if (first < 0x80 && second < 0x80) return std::nullopt;
  utf8proc_int32_t pair[2] = {static_cast<utf8proc_int32_t>(first), static_cast<utf8proc_int32_t>(second)};
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(pair, 2, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (n != 1) return std::nullopt;
  return static_cast<char32_t>(pair[0]);
}

}  // namespace

void normalize_unicode(AlignedText& text, UnicodeForm form, uint32_t base) {
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool composed = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const auto flags =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<ChangedChar> parts;
  parts.reserve(text.text.size());
  size_t sorted_from = 0;  // combining marks since here wait to be put in order
  const auto sort_marks = [&] {
    if (parts.size() - sorted_from > 1) {
      std::stable_sort(parts.begin() + static_cast<std::ptrdiff_t>(sorted_from), parts.end(),
                       [](const ChangedChar& a, const ChangedChar& b) {
                         return combining_class(a.value) < combining_class(b.value);
                       });
    }
  };
  for (size_t at = 0; at < text.text.size();) {
    const DecodedChar c = decode_char(text.text.data(), at);
    at += c.bytes;
    utf8proc_int32_t buffer[64];
    int boundary = 0;
    utf8proc_ssize_t n = 1;
    buffer[0] = static_cast<utf8proc_int32_t>(c.value);
    if (c.value >= 0x80) n = utf8proc_decompose_char(buffer[0], buffer, 64, flags, &boundary);
    for (utf8proc_ssize_t i = 0; i < n && i < 64; ++i) {
      const auto part = static_cast<char32_t>(buffer[i]);
      if (combining_class(part) == 0) {
        sort_marks();
        parts.push_back({part, i > 0});
        sorted_from = parts.size();
      } else {
        parts.push_back({part, i > 0});
      }
    }
  }
  sort_marks();
  if (!composed) {
    text.transform(parts, 0, base);
    return;
  }
  std::vector<ChangedChar> out;
  out.reserve(parts.size());
  size_t starter = SIZE_MAX;  // index in out
  int last_class = -1;        // class of the last mark kept after the starter; -1: none
  for (const ChangedChar& part : parts) {
    const int klass = combining_class(part.value);
    if (starter != SIZE_MAX && last_class < klass && (last_class == -1 || klass != 0)) {
      if (const auto both = compose(out[starter].value, part.value)) {
        out[starter].value = *both;
        out[starter].change += part.change - 1;
        continue;
      }
    }
    if (klass == 0) {
      starter = out.size();
      last_class = -1;
    } else {
      last_class = klass;
    }
    out.push_back(part);
  }
  text.transform(out, 0, base);
}

}  // namespace tare::text
