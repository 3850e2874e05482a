#include "io/names.h"

#include <fmt/format.h>

#include <cstdint>

namespace tare::io {

namespace {
constexpr size_t kMaxNameBytes = 65535;
constexpr size_t kShownBytes = 200;
}  // namespace

bool is_valid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = byte(i);
    size_t more = 0;
    uint32_t code = 0;
    uint32_t least = 0;  // smallest code point that may take this length
    if (lead < 0x80) {
      ++i;
      continue;
    } else if (lead >= 0xC2 && lead <= 0xDF) {
      more = 1, code = lead & 0x1Fu, least = 0x80;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      more = 2, code = lead & 0x0Fu, least = 0x800;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      more = 3, code = lead & 0x07u, least = 0x10000;
    } else {
      return false;
    }
    if (text.size() - i <= more) return false;
    for (size_t j = 1; j <= more; ++j) {
      if ((byte(i + j) & 0xC0) != 0x80) return false;
      code = code << 6 | (byte(i + j) & 0x3Fu);
    }
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    i += more + 1;
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out = "'";
  const std::string_view shown = text.substr(0, kShownBytes);
  const bool printable_utf8 = is_valid_utf8(shown);
  for (const char c : shown) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !printable_utf8)) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += text.size() > kShownBytes ? "...'" : "'";
  return out;
}

Status check_name(std::string_view name, std::string_view what, std::string_view where) {
  const auto refuse = [&](const char* expected) -> Status {
    return invalid_input(fmt::format("bad {}", what),
                         {.where = std::string(where), .expected = expected, .found = printable(name)});
  };
  if (name.empty()) return refuse("a name that is not empty");
  if (name.size() > kMaxNameBytes) return refuse("at most 65535 bytes");
  if (!is_valid_utf8(name)) return refuse("UTF-8");
  for (const char c : name) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (byte <= 0x20 || byte == 0x7F || c == '"' || c == '\'' || c == '\\') {
      return refuse("no control character, space, quote or backslash");
    }
  }
  return {};
}

}  // namespace tare::io
