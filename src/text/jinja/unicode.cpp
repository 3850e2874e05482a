#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <cstdlib>

namespace tare::text::jinja {

namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += (c >= 'a' && c <= 'z') ? static_cast<char>(c - 32) : static_cast<char>(c);
  } else if (const char32_t* many = special_upper(c)) {
    for (int i = 0; i < 3 && many[i]; ++i) append_utf8(out, many[i]);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string& out, char32_t c) {
  if (c < 0x80) {
    append_upper(out, c);
  } else if (const char32_t* many = special_title(c)) {
    for (int i = 0; i < 3 && many[i]; ++i) append_utf8(out, many[i]);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

bool case_ignorable(char32_t c) {
  if (c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xB7 || c == 0x2019) return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return false;
  }
}

// A capital sigma ends a word when a letter stands before it and none after it (ignoring marks).
bool final_sigma(std::string_view text, size_t at, size_t next) {
  bool before = false;
  for (size_t i = at; i > 0;) {
    do {
      --i;
    } while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80);
    const char32_t c = code_point_at(text, i).value;
    if (case_ignorable(c)) continue;
    before = is_cased(c);
    break;
  }
  if (!before) return false;
  for (size_t i = next; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    i += c.bytes;
    if (case_ignorable(c.value)) continue;
    return !is_cased(c.value);
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, size_t at, CodePoint c) {
  if (c.value < 0x80) {
    out += (c.value >= 'A' && c.value <= 'Z') ? static_cast<char>(c.value + 32) : static_cast<char>(c.value);
  } else if (c.value == 0x130) {
    append_utf8(out, 'i');
    append_utf8(out, 0x307);
  } else if (c.value == 0x3A3) {
    append_utf8(out, final_sigma(text, at, at + c.bytes) ? 0x3C2 : 0x3C3);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
  }
}

template <class Body>
void each(std::string_view text, Body body) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    body(i, c);
    i += c.bytes;
  }
}

// A broken byte is copied as it is.
bool broken(std::string_view text, size_t at, CodePoint c) {
  return c.value == 0xFFFD && c.bytes == 1 && static_cast<unsigned char>(text[at]) >= 0x80;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const unsigned char first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t c = 0;
  const auto got = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                    static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - at, 4)), &c);
  if (got <= 0) return {0xFFFD, 1};
  return {static_cast<char32_t>(c), static_cast<size_t>(got)};
}

void append_utf8(std::string& out, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n > 0 ? n : 0));
}

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (broken(text, i, c)) return false;
    i += c.bytes;
  }
  return true;
}

size_t code_point_count(std::string_view text) {
  size_t count = 0;
  each(text, [&](size_t, CodePoint) { ++count; });
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += code_point_at(text, at).bytes;
    --index;
  }
  return at;
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  each(text, [&](size_t at, CodePoint) { offsets.push_back(at); });
  offsets.push_back(text.size());
  return offsets;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
bool is_line_break(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}
bool is_alpha(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}
bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) ||
         (c >= 0x2488 && c <= 0x2490) || c == 0x24EA || (c >= 0x24F5 && c <= 0x24FD) || c == 0x24FF ||
         (c >= 0x2776 && c <= 0x277E) || (c >= 0x2780 && c <= 0x2788) || (c >= 0x278A && c <= 0x2792);
}
bool is_numeric(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool is_alnum(char32_t c) {
  return is_alpha(c) || is_numeric(c);
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F);
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA || (c >= 0x2170 && c <= 0x217F);
}
bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}
bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}
bool is_word(char32_t c) {
  return c == '_' || is_alnum(c);
}

std::string_view strip(std::string_view text, Side side, const std::string_view* chars) {
  const auto goes = [&](char32_t c) {
    if (!chars) return is_space(c);
    for (size_t i = 0; i < chars->size();) {
      const CodePoint one = code_point_at(*chars, i);
      if (one.value == c) return true;
      i += one.bytes;
    }
    return false;
  };
  if (side != Side::kRight) {
    while (!text.empty()) {
      const CodePoint c = code_point_at(text, 0);
      if (!goes(c.value)) break;
      text.remove_prefix(c.bytes);
    }
  }
  if (side != Side::kLeft) {
    while (!text.empty()) {
      size_t at = text.size() - 1;
      while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
      CodePoint c = code_point_at(text, at);
      if (at + c.bytes != text.size()) c = {0xFFFD, 1}, at = text.size() - 1;
      if (!goes(c.value)) break;
      text.remove_suffix(text.size() - at);
    }
  }
  return text;
}

std::string upper(std::string_view text) {
  std::string out;
  each(text, [&](size_t at, CodePoint c) { broken(text, at, c) ? void(out += text[at]) : append_upper(out, c.value); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  each(text,
       [&](size_t at, CodePoint c) { broken(text, at, c) ? void(out += text[at]) : append_lower(out, text, at, c); });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  each(text, [&](size_t at, CodePoint c) {
    if (broken(text, at, c)) {
      out += text[at];
    } else if (inside) {
      append_lower(out, text, at, c);
    } else {
      append_title(out, c.value);
    }
    inside = is_cased(c.value);
  });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  each(text, [&](size_t at, CodePoint c) {
    if (broken(text, at, c)) {
      out += text[at];
    } else if (at == 0) {
      append_title(out, c.value);
    } else {
      append_lower(out, text, at, c);
    }
  });
  return out;
}

std::string casefold(std::string_view text) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &mapped, UTF8PROC_CASEFOLD);
  if (size < 0) return lower(text);
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  each(text, [&](size_t at, CodePoint c) {
    if (is_upper(c.value)) {
      append_lower(out, text, at, c);
    } else if (is_lower(c.value)) {
      append_upper(out, c.value);
    } else {
      out.append(text.substr(at, c.bytes));
    }
  });
  return out;
}

}  // namespace tare::text::jinja
