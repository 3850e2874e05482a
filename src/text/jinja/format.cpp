#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/result.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

constexpr size_t kMaxWidth = 1 << 20;

std::string digits_in(Integer value, int base, bool upper_case) {
  using Unsigned = unsigned __int128;
  Unsigned rest = value < 0 ? Unsigned(0) - static_cast<Unsigned>(value) : static_cast<Unsigned>(value);
  std::string out;
  do {
    const int digit = static_cast<int>(rest % static_cast<unsigned>(base));
    out += static_cast<char>(digit < 10 ? '0' + digit : (upper_case ? 'A' : 'a') + digit - 10);
    rest /= static_cast<unsigned>(base);
  } while (rest);
  std::reverse(out.begin(), out.end());
  return out;
}

// A width or precision written in a format; false when it is unreasonably large.
bool read_number(std::string_view text, size_t& at, size_t& value) {
  value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    value = value * 10 + static_cast<size_t>(text[at++] - '0');
    if (value > kMaxWidth) return false;
  }
  return true;
}

struct PercentSpec {
  bool left = false, plus = false, blank = false, zero = false, alternate = false;
  size_t width = 0;
  std::optional<size_t> precision;
  char type = 's';
};

std::string pad_number(std::string sign, std::string digits, const PercentSpec& spec) {
  const size_t size = sign.size() + digits.size();
  if (size >= spec.width) return sign + digits;
  const size_t room = spec.width - size;
  if (spec.left) return sign + digits + std::string(room, ' ');
  if (spec.zero) return sign + std::string(room, '0') + digits;
  return std::string(room, ' ') + sign + digits;
}

std::string sign_of(bool negative, const PercentSpec& spec) {
  return negative ? "-" : spec.plus ? "+" : spec.blank ? " " : "";
}

Out<std::string> percent_one(Runtime& runtime, const Value& value, const PercentSpec& spec, bool safe) {
  switch (spec.type) {
    case 's':
    case 'r':
    case 'a': {
      TARE_ASSIGN(std::string text, spec.type == 's' ? runtime.print(value) : runtime.repr(value));
      if (safe && !value.is_safe()) text = escape_html(text);
      if (spec.precision) text.resize(byte_offset(text, *spec.precision));
      const size_t size = code_point_count(text);
      if (size >= spec.width) return text;
      const std::string room(spec.width - size, ' ');
      return spec.left ? text + room : room + text;
    }
    case 'c': {
      std::string text;
      if (value.is_integral() && value.as_integer() >= 0 && value.as_integer() < 0x110000) {
        append_utf8(text, static_cast<char32_t>(value.as_integer()));
      } else if (value.is_string() && code_point_count(value.bytes()) == 1) {
        text = value.bytes();
      } else {
        return type_fault("%c requires int or char");
      }
      PercentSpec plain = spec;
      plain.zero = false;
      return pad_number("", text, plain);
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
      Integer whole = 0;
      if (value.is_integral()) {
        whole = value.as_integer();
      } else if (decimal && value.is_real() && std::abs(value.as_real()) < 1e38) {
        whole = static_cast<Integer>(value.as_real());
      } else if (value.is_undefined()) {
        return type_fault(value.missing_message());
      } else {
        return type_fault(fmt::format("%{} format: a real number is required, not {}", spec.type, value.type_name()));
      }
      std::string digits = digits_in(whole, decimal ? 10 : spec.type == 'o' ? 8 : 16, spec.type == 'X');
      if (spec.precision && digits.size() < *spec.precision) digits.insert(0, *spec.precision - digits.size(), '0');
      std::string sign = sign_of(whole < 0, spec);
      if (spec.alternate && !decimal) sign += std::string("0") + spec.type;
      return pad_number(sign, digits, spec);
    }
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G': {
      if (value.is_undefined()) return type_fault(value.missing_message());
      if (!value.is_number()) return type_fault(fmt::format("must be real number, not {}", value.type_name()));
      const double real = value.as_real();
      const std::string digits =
          format_real(std::abs(real), spec.type, static_cast<int>(spec.precision.value_or(6)), spec.alternate);
      return pad_number(sign_of(std::signbit(real) && !std::isnan(real), spec), digits, spec);
    }
    default:
      return type_fault(fmt::format("unsupported format character '{}'", spec.type));
  }
}

}  // namespace

std::string format_real(double value, char type, int precision, bool alternate) {
  const std::string format = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  const int size = std::snprintf(nullptr, 0, format.c_str(), precision, value);
  std::string out(static_cast<size_t>(std::max(size, 0)) + 1, '\0');
  std::snprintf(out.data(), out.size(), format.c_str(), precision, value);
  out.pop_back();
  return out;
}

std::optional<Integer> parse_integer(std::string_view text, int base) {
  text = strip(text, Side::kBoth);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) negative = text[0] == '-', text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char marker = static_cast<char>(text[1] | 0x20);
    const int marked = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
    if (marked && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(2);
      if (text[0] == '_') text.remove_prefix(1);
    }
  }
  if (base == 0) base = 10;
  if (text.empty() || text.front() == '_' || text.back() == '_') return std::nullopt;
  Integer value = 0;
  bool underscore = false;
  for (const char c : text) {
    if (c == '_') {
      if (underscore) return std::nullopt;
      underscore = true;
      continue;
    }
    underscore = false;
    const char low = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Integer(base), &value) || __builtin_add_overflow(value, Integer(digit), &value)) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string_view text) {
  text = strip(text, Side::kBoth);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
      continue;
    }
    plain += text[i];
  }
  std::string_view digits = plain;
  if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '+') return std::nullopt;
  double value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (failed == std::errc::result_out_of_range) {
    const bool tiny = digits.find("e-") != std::string_view::npos || digits.find("E-") != std::string_view::npos;
    value = tiny ? 0 : INFINITY;
    return digits[0] == '-' ? -value : value;
  }
  if (failed != std::errc()) return std::nullopt;
  return value;
}

Out<Value> percent_format(Runtime& runtime, const Value& format, const Value& values) {
  const std::string& text = format.bytes();
  const bool tuple = values.is_tuple();
  size_t next = 0;
  bool used = false;  // the one value, or names of a dict
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    PercentSpec spec;
    ++i;
    std::optional<Value> named;
    if (i < text.size() && text[i] == '(') {
      const size_t close = text.find(')', i);
      if (close == std::string::npos) return type_fault("incomplete format key");
      if (!values.is_dict()) return type_fault("format requires a mapping");
      const std::string key = text.substr(i + 1, close - i - 1);
      const Value* found = values.dict().find(key);
      if (!found) return type_fault(fmt::format("KeyError: {}", repr_text(key)));
      named = *found;
      used = true;
      i = close + 1;
    }
    for (; i < text.size(); ++i) {
      if (text[i] == '-')
        spec.left = true;
      else if (text[i] == '+')
        spec.plus = true;
      else if (text[i] == ' ')
        spec.blank = true;
      else if (text[i] == '0')
        spec.zero = true;
      else if (text[i] == '#')
        spec.alternate = true;
      else
        break;
    }
    const auto take = [&]() -> Out<Value> {
      if (named) return *named;
      if (tuple) {
        if (next >= values.items().size()) return type_fault("not enough arguments for format string");
        return values.items()[next++];
      }
      if (used) return type_fault("not enough arguments for format string");
      used = true;
      return values;
    };
    const auto star = [&](size_t& number) -> Out<bool> {
      TARE_ASSIGN(const Value given, take());
      if (!given.is_integral()) return type_fault("* wants int");
      Integer wanted = given.as_integer();
      const bool negative = wanted < 0;
      if (negative) wanted = -wanted;
      if (wanted > static_cast<Integer>(kMaxWidth)) return limit_fault("format width too large");
      number = static_cast<size_t>(wanted);
      return negative;
    };
    if (i < text.size() && text[i] == '*') {
      ++i;
      TARE_ASSIGN(const bool negative, star(spec.width));
      spec.left |= negative;
    } else if (!read_number(text, i, spec.width)) {
      return limit_fault("format width too large");
    }
    if (i < text.size() && text[i] == '.') {
      ++i;
      size_t precision = 0;
      if (i < text.size() && text[i] == '*') {
        ++i;
        TARE_ASSIGN(const bool negative, star(precision));
        if (negative) precision = 0;
      } else if (!read_number(text, i, precision) || precision > 10000) {
        return limit_fault("format precision too large");
      }
      if (precision > 10000) return limit_fault("format precision too large");
      spec.precision = precision;
    }
    while (i < text.size() && (text[i] == 'l' || text[i] == 'h' || text[i] == 'L')) ++i;
    if (i >= text.size()) return type_fault("incomplete format");
    spec.type = text[i];
    if (spec.type == '%') {
      out += '%';
      continue;
    }
    TARE_ASSIGN(const Value value, take());
    TARE_ASSIGN(const std::string piece, percent_one(runtime, value, spec, format.is_safe()));
    out += piece;
    TARE_TRY(runtime.check_size(out.size()));
  }
  const bool left_over = tuple ? next < values.items().size() : !used && !values.is_dict() && !values.is_list();
  if (left_over) return type_fault("not all arguments converted during string formatting");
  return runtime.text(std::move(out), format.is_safe());
}

}  // namespace tare::text::jinja
