#include "cli/json_out.h"

#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace tare::cli {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the well-formed UTF-8 character at the start of s, 0 when there is none (Unicode 15, table 3-7).
size_t well_formed_prefix(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : uint8_t{0}; };
  const auto within = [&](size_t i, uint8_t low, uint8_t high) { return byte(i) >= low && byte(i) <= high; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::string clean(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size();) {
    const size_t length = well_formed_prefix(s.substr(i));
    if (length > 0)
      out.append(s.substr(i, length));
    else
      out.append(kReplacement);
    i += length > 0 ? length : 1;
  }
  return out;
}

bool is_clean(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const size_t length = well_formed_prefix(s.substr(i));
    if (length == 0) return false;
    i += length;
  }
  return true;
}

void sanitize(boost::json::value& v) {
  if (v.is_double()) {
    if (!std::isfinite(v.get_double())) v = nullptr;
  } else if (v.is_string()) {
    if (!is_clean(v.get_string())) v = boost::json::string(clean(v.get_string()));
  } else if (v.is_array()) {
    for (boost::json::value& item : v.get_array()) sanitize(item);
  } else if (v.is_object()) {
    boost::json::object renamed;
    for (auto& member : v.get_object()) {
      sanitize(member.value());
      renamed[clean(member.key())] = std::move(member.value());
    }
    v = std::move(renamed);
  }
}

}  // namespace

std::string json_line(const boost::json::value& document) {
  boost::json::value copy = document;
  sanitize(copy);
  return boost::json::serialize(copy);
}

}  // namespace tare::cli
