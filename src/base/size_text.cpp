#include "base/size_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace tare {

namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},      {"b", 1},        {"kb", 1e3},        {"mb", 1e6},           {"gb", 1e9},
    {"tb", 1e12}, {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0}};

}  // namespace

Result<uint64_t> parse_size(std::string_view text, std::string_view where) {
  const auto refuse = [&] {
    return invalid_input("not a size", {.where = std::string(where),
                                        .expected = "a number and a unit, as in 2GiB or 900MiB",
                                        .found = fmt::format("'{}'", text.substr(0, 80))});
  };
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (parsed.ec != std::errc() || !std::isfinite(number) || std::signbit(number)) return refuse();
  std::string unit(parsed.ptr, text.data() + text.size());
  unit.erase(0, std::min(unit.size(), unit.find_first_not_of(' ')));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    const double bytes = number * known.bytes;
    if (bytes >= 9.2e18) return refuse();
    return static_cast<uint64_t>(std::llround(bytes));
  }
  return refuse();
}

std::string size_text(uint64_t bytes) {
  static constexpr std::string_view kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double scaled = static_cast<double>(bytes) / 1024;
  size_t i = 0;
  while (scaled >= 1023.995 && i + 1 < std::size(kNames)) {
    scaled /= 1024;
    ++i;
  }
  const int digits = scaled < 10 ? 2 : scaled < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, digits, kNames[i]);
}

}  // namespace tare
