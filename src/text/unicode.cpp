#include "text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace tare::text {

namespace {

struct Range {
  char32_t first, last;
  uint32_t classes;
};

// Code points assigned after the Unicode level of utf8proc (15.0), with the classes of Unicode 16 and, for
// kNumericOfDigits, of 17. Found by asking the reference library about every code point.
constexpr Range kLaterRanges[] = {
    {0x897, 0x897, kMark},
    {0x1B4E, 0x1B4F, kPunctuation},
    {0x1B7F, 0x1B7F, kPunctuation},
    {0x1C89, 0x1C89, kLetter | kUpper},
    {0x1C8A, 0x1C8A, kLetter | kLower},
    {0x2427, 0x2429, kSymbol},
    {0x2FFC, 0x2FFF, kSymbol},
    {0x31E4, 0x31E5, kSymbol},
    {0x31EF, 0x31EF, kSymbol},
    {0xA7CB, 0xA7CC, kLetter | kUpper},
    {0xA7CD, 0xA7CD, kLetter | kLower},
    {0xA7DA, 0xA7DA, kLetter | kUpper},
    {0xA7DB, 0xA7DB, kLetter | kLower},
    {0xA7DC, 0xA7DC, kLetter | kUpper},
    {0x105C0, 0x105F3, kLetter | kOtherLetter},
    {0x10D40, 0x10D49, kNumber | kDecimal | kNumericOfDigits},
    {0x10D4A, 0x10D4D, kLetter | kOtherLetter},
    {0x10D4E, 0x10D4E, kLetter | kModifier},
    {0x10D4F, 0x10D4F, kLetter | kOtherLetter},
    {0x10D50, 0x10D65, kLetter | kUpper},
    {0x10D69, 0x10D6D, kMark},
    {0x10D6E, 0x10D6E, kPunctuation},
    {0x10D6F, 0x10D6F, kLetter | kModifier},
    {0x10D70, 0x10D85, kLetter | kLower},
    {0x10D8E, 0x10D8F, kSymbol},
    {0x10EC2, 0x10EC4, kLetter | kOtherLetter},
    {0x10EFC, 0x10EFC, kMark},
    {0x11380, 0x11389, kLetter | kOtherLetter},
    {0x1138B, 0x1138B, kLetter | kOtherLetter},
    {0x1138E, 0x1138E, kLetter | kOtherLetter},
    {0x11390, 0x113B5, kLetter | kOtherLetter},
    {0x113B7, 0x113B7, kLetter | kOtherLetter},
    {0x113B8, 0x113C0, kMark},
    {0x113C2, 0x113C2, kMark},
    {0x113C5, 0x113C5, kMark},
    {0x113C7, 0x113CA, kMark},
    {0x113CC, 0x113D0, kMark},
    {0x113D1, 0x113D1, kLetter | kOtherLetter},
    {0x113D2, 0x113D2, kMark},
    {0x113D3, 0x113D3, kLetter | kOtherLetter},
    {0x113D4, 0x113D5, kPunctuation},
    {0x113D7, 0x113D8, kPunctuation},
    {0x113E1, 0x113E2, kMark},
    {0x116D0, 0x116E3, kNumber | kDecimal | kNumericOfDigits},
    {0x11BC0, 0x11BE0, kLetter | kOtherLetter},
    {0x11BE1, 0x11BE1, kPunctuation},
    {0x11BF0, 0x11BF9, kNumber | kDecimal | kNumericOfDigits},
    {0x11DE0, 0x11DE9, kNumericOfDigits},
    {0x11F5A, 0x11F5A, kMark},
    {0x13460, 0x143FA, kLetter | kOtherLetter},
    {0x16100, 0x1611D, kLetter | kOtherLetter},
    {0x1611E, 0x1612F, kMark},
    {0x16130, 0x16139, kNumber | kDecimal | kNumericOfDigits},
    {0x16D40, 0x16D42, kLetter | kModifier},
    {0x16D43, 0x16D6A, kLetter | kOtherLetter},
    {0x16D6B, 0x16D6C, kLetter | kModifier},
    {0x16D6D, 0x16D6F, kPunctuation},
    {0x16D70, 0x16D79, kNumber | kDecimal | kNumericOfDigits},
    {0x16FF4, 0x16FF6, kNumericOfDigits},
    {0x18CFF, 0x18CFF, kLetter | kOtherLetter},
    {0x1CC00, 0x1CCEF, kSymbol},
    {0x1CCF0, 0x1CCF9, kNumber | kDecimal | kNumericOfDigits},
    {0x1CD00, 0x1CEB3, kSymbol},
    {0x1E5D0, 0x1E5ED, kLetter | kOtherLetter},
    {0x1E5EE, 0x1E5EF, kMark},
    {0x1E5F0, 0x1E5F0, kLetter | kOtherLetter},
    {0x1E5F1, 0x1E5FA, kNumber | kDecimal | kNumericOfDigits},
    {0x1E5FF, 0x1E5FF, kPunctuation},
    {0x1F8B2, 0x1F8BB, kSymbol},
    {0x1F8C0, 0x1F8C1, kSymbol},
    {0x1FA89, 0x1FA89, kSymbol},
    {0x1FA8F, 0x1FA8F, kSymbol},
    {0x1FABE, 0x1FABE, kSymbol},
    {0x1FAC6, 0x1FAC6, kSymbol},
    {0x1FADC, 0x1FADC, kSymbol},
    {0x1FADF, 0x1FADF, kSymbol},
    {0x1FAE9, 0x1FAE9, kSymbol},
    {0x1FBCB, 0x1FBEF, kSymbol},
    {0x2EBF0, 0x2EE5D, kLetter | kOtherLetter},
};

// Punctuation that did not exist, or was no punctuation, at the Unicode level (8) of the Punctuation pre-tokenizer.
constexpr Range kNotSplitPunctuation[] = {
    {0x61D, 0x61D, 0},     {0x9FD, 0x9FD, 0},     {0xA76, 0xA76, 0},     {0xC77, 0xC77, 0},     {0xC84, 0xC84, 0},
    {0x1B7D, 0x1B7E, 0},   {0x2E43, 0x2E4F, 0},   {0x2E52, 0x2E5D, 0},   {0x10EAD, 0x10EAD, 0}, {0x10F55, 0x10F59, 0},
    {0x10F86, 0x10F89, 0}, {0x1144B, 0x1144F, 0}, {0x1145A, 0x1145B, 0}, {0x1145D, 0x1145D, 0}, {0x11660, 0x1166C, 0},
    {0x116B9, 0x116B9, 0}, {0x1183B, 0x1183B, 0}, {0x11944, 0x11946, 0}, {0x119E2, 0x119E2, 0}, {0x11A3F, 0x11A46, 0},
    {0x11A9A, 0x11A9C, 0}, {0x11A9E, 0x11AA2, 0}, {0x11B00, 0x11B09, 0}, {0x11C41, 0x11C45, 0}, {0x11C70, 0x11C71, 0},
    {0x11EF7, 0x11EF8, 0}, {0x11F43, 0x11F4F, 0}, {0x11FFF, 0x11FFF, 0}, {0x12FF1, 0x12FF2, 0}, {0x16E97, 0x16E9A, 0},
    {0x16FE2, 0x16FE2, 0}, {0x1E95E, 0x1E95F, 0},
};

uint32_t classes_of(char32_t c) {
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  uint32_t out = 0;
  switch (property->category) {
    case UTF8PROC_CATEGORY_LU:
      out = kLetter | kUpper;
      break;
    case UTF8PROC_CATEGORY_LL:
      out = kLetter | kLower;
      break;
    case UTF8PROC_CATEGORY_LT:
      out = kLetter | kTitle;
      break;
    case UTF8PROC_CATEGORY_LM:
      out = kLetter | kModifier;
      break;
    case UTF8PROC_CATEGORY_LO:
      out = kLetter | kOtherLetter;
      break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      out = kMark;
      break;
    case UTF8PROC_CATEGORY_ND:
      out = kNumber | kDecimal | kNumericOfDigits;
      break;
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      out = kNumber | kNumericOfDigits;
      break;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      out = kPunctuation | kSplitPunctuation;
      break;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      out = c < 0x80 ? kSymbol | kSplitPunctuation : static_cast<uint32_t>(kSymbol);
      break;
    default:
      break;
  }
  if ((c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
      c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000) {
    out |= kWhitespace;
  }
  if (c == '\r' || c == '\n') out |= kNewline;
  if (c == 0x166D || c == 0x111C9) out |= kSplitPunctuation;  // punctuation in Unicode 8, symbols since
  if (out & kSplitPunctuation) {
    for (const Range& range : kNotSplitPunctuation) {
      if (c >= range.first && c <= range.last) out &= ~static_cast<uint32_t>(kSplitPunctuation);
    }
  }
  if (property->category == UTF8PROC_CATEGORY_CN) {
    for (const Range& range : kLaterRanges) {
      if (c >= range.first && c <= range.last) out |= range.classes;
    }
  }
  if (c >= 0x300) {
    const bool second_of_a_pair = property->comb_index != UINT16_MAX && property->comb_index >= 0x8000;
    bool changes = property->combining_class != 0 || second_of_a_pair;
    // Conjoining jamo compose by arithmetic, not by table.
    changes = changes || (c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2);
    if (!changes && property->decomp_seqindex != UINT16_MAX) {
      utf8proc_int32_t buffer[32];
      const auto flags = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
      int boundary = 0;
      utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, 32, flags, &boundary);
      if (n > 0 && n <= 32) n = utf8proc_normalize_utf32(buffer, n, flags);
      changes = n != 1 || buffer[0] != static_cast<utf8proc_int32_t>(c);
    }
    if (changes) out |= kNormalizes;
  }
  return out;
}

}  // namespace

const uint32_t* char_class_table() {
  // Constant data, built once: no state that could differ between two calls.
  static const std::vector<uint32_t> table = [] {
    std::vector<uint32_t> classes(kClassTableSize);
    for (char32_t c = 0; c < kClassTableSize; ++c) classes[c] = classes_of(c);
    return classes;
  }();
  return table.data();
}

uint32_t char_classes(char32_t c) {
  if (c < kClassTableSize) return char_class_table()[c];
  return c <= 0x10FFFF ? classes_of(c) : 0;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

Utf8Scan scan_utf8(std::string_view bytes) {
  const auto* s = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t n = bytes.size();
  size_t at = 0;
  while (at < n) {
    const unsigned char b = s[at];
    if (b < 0x80) {
      uint64_t eight;
      while (at + 8 <= n && (std::memcpy(&eight, s + at, 8), (eight & 0x8080808080808080ull) == 0)) at += 8;
      while (at < n && s[at] < 0x80) ++at;
      continue;
    }
    // Length of the sequence and the narrowed range of its second byte (Unicode table 3-7).
    size_t length = 0;
    unsigned char low = 0x80, high = 0xBF;
    if (b >= 0xC2 && b <= 0xDF) {
      length = 2;
    } else if (b >= 0xE0 && b <= 0xEF) {
      length = 3;
      if (b == 0xE0) low = 0xA0;
      if (b == 0xED) high = 0x9F;
    } else if (b >= 0xF0 && b <= 0xF4) {
      length = 4;
      if (b == 0xF0) low = 0x90;
      if (b == 0xF4) high = 0x8F;
    } else {
      return {at, 1, false};
    }
    size_t have = 1;
    while (have < length && at + have < n) {
      const unsigned char next = s[at + have];
      if (next < (have == 1 ? low : 0x80) || next > (have == 1 ? high : 0xBF)) break;
      ++have;
    }
    if (have == length) {
      at += length;
      continue;
    }
    if (at + have == n) return {at, 0, true};
    return {at, have, false};
  }
  return {n, 0, false};
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  const Utf8Scan scan = scan_utf8(text);
  if (scan.valid == text.size()) return std::nullopt;
  return scan.valid;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Scan scan = scan_utf8(bytes);
    out.append(bytes.substr(0, scan.valid));
    bytes.remove_prefix(scan.valid);
    if (bytes.empty()) break;
    out += "\xEF\xBF\xBD";
    bytes.remove_prefix(scan.incomplete ? bytes.size() : scan.bad);
  }
  return out;
}

void append_lowercase(std::u32string& out, char32_t c) {
  if (c == 0x130) {
    out += U"i\u0307";
    return;
  }
  out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

namespace {

constexpr bool is_own_char(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint16_t, 256> kByteToChar = [] {
  std::array<uint16_t, 256> table{};
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) table[byte] = is_own_char(byte) ? static_cast<uint16_t>(byte) : next++;
  return table;
}();

constexpr std::array<int16_t, 324> kCharToByte = [] {
  std::array<int16_t, 324> table{};
  for (auto& entry : table) entry = -1;
  for (int byte = 0; byte < 256; ++byte) table[kByteToChar[byte]] = static_cast<int16_t>(byte);
  return table;
}();

}  // namespace

char32_t byte_to_char(uint8_t byte) {
  return kByteToChar[byte];
}

int char_to_byte(char32_t c) {
  return c < kCharToByte.size() ? kCharToByte[c] : -1;
}

}  // namespace tare::text
