#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/result.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

// [[fill]align][sign][#][0][width][,][.precision][type]
struct Specification {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  char group = '\0';
  size_t width = 0;
  std::optional<int> precision;
  char type = '\0';
};

bool is_align(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

Out<Specification> parse_specification(std::string_view text) {
  Specification spec;
  size_t i = 0;
  const size_t first = text.empty() ? 0 : code_point_at(text, 0).bytes;
  if (first < text.size() && is_align(text[first])) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    i = first + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    i = 1;
  }
  if (i < text.size() && (text[i] == '+' || text[i] == '-' || text[i] == ' ')) spec.sign = text[i++];
  if (i < text.size() && text[i] == '#') spec.alternate = true, ++i;
  if (i < text.size() && text[i] == '0') {
    if (!spec.align) spec.align = '=', spec.fill = "0";
    ++i;
  }
  const auto number = [&](size_t limit) -> std::optional<size_t> {
    size_t value = 0;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') {
      value = value * 10 + static_cast<size_t>(text[i++] - '0');
      if (value > limit) return std::nullopt;
    }
    return value;
  };
  const auto width = number(1 << 20);
  if (!width) return limit_fault("format width too large");
  spec.width = *width;
  if (i < text.size() && (text[i] == ',' || text[i] == '_')) spec.group = text[i++];
  if (i < text.size() && text[i] == '.') {
    ++i;
    const auto precision = number(10000);
    if (!precision) return limit_fault("format precision too large");
    spec.precision = static_cast<int>(*precision);
  }
  if (i < text.size()) spec.type = text[i++];
  if (i != text.size()) return type_fault("Invalid format specifier");
  return spec;
}

std::string aligned(const std::string& sign, const std::string& body, const Specification& spec, char usual) {
  const size_t size = code_point_count(sign) + code_point_count(body);
  if (size >= spec.width) return sign + body;
  const size_t room = spec.width - size;
  const auto fill = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align ? spec.align : usual) {
    case '<':
      return sign + body + fill(room);
    case '^':
      return fill(room / 2) + sign + body + fill(room - room / 2);
    case '=':
      return sign + fill(room) + body;
    default:
      return fill(room) + sign + body;
  }
}

std::string grouped(const std::string& digits, char separator, size_t every) {
  if (!separator) return digits;
  size_t whole = 0;
  while (whole < digits.size() && digits[whole] != '.' && digits[whole] != 'e' && digits[whole] != 'E') ++whole;
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i && (whole - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

std::string in_base(Integer value, int base, bool upper_case) {
  std::string out;
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  do {
    const int digit = static_cast<int>(rest % static_cast<unsigned>(base));
    out += static_cast<char>(digit < 10 ? '0' + digit : (upper_case ? 'A' : 'a') + digit - 10);
    rest /= static_cast<unsigned>(base);
  } while (rest);
  std::reverse(out.begin(), out.end());
  return out;
}

Out<std::string> format_integer(Integer value, const Specification& spec) {
  const std::string sign = value < 0 ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const bool decimal = spec.type == '\0' || spec.type == 'd' || spec.type == 'n';
  const int base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : spec.type == 'x' || spec.type == 'X' ? 16 : 10;
  if (spec.type == 'c') {
    if (value < 0 || value > 0x10FFFF) return type_fault("%c arg not in range(0x110000)");
    std::string text;
    append_utf8(text, static_cast<char32_t>(value));
    return aligned("", text, spec, '<');
  }
  if (!decimal && base == 10)
    return type_fault(fmt::format("Unknown format code '{}' for object of type 'int'", spec.type));
  if (spec.precision) return type_fault("Precision not allowed in integer format specifier");
  const std::string digits = in_base(value, base, spec.type == 'X');
  const std::string prefix = spec.alternate && base != 10 ? std::string("0") + spec.type : "";
  return aligned(sign + prefix, grouped(digits, spec.group, base == 10 ? 3 : 4), spec, '>');
}

Out<std::string> format_double(double value, const Specification& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const double size = std::abs(value);
  std::string digits;
  switch (spec.type) {
    case '\0':
      if (!spec.precision) {
        digits = real_text(size);
      } else {
        digits = format_real(size, 'g', std::max(*spec.precision, 1), spec.alternate);
        if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
      }
      break;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
      digits = format_real(size, spec.type, spec.precision.value_or(6), spec.alternate);
      break;
    case 'n':
      digits = format_real(size, 'g', spec.precision.value_or(6), spec.alternate);
      break;
    case '%':
      digits = format_real(size * 100, 'f', spec.precision.value_or(6), spec.alternate) + "%";
      break;
    default:
      return type_fault(fmt::format("Unknown format code '{}' for object of type 'float'", spec.type));
  }
  return aligned(sign, grouped(digits, spec.group, 3), spec, '>');
}

class BraceFormat {
 public:
  BraceFormat(Runtime& runtime, const CallArguments& arguments, bool safe)
      : runtime_(runtime), arguments_(arguments), safe_(safe) {}

  Out<std::string> run(std::string_view text, int depth) {
    if (depth > 2) return type_fault("Max string recursion exceeded");
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c != '{' && c != '}') {
        out += c;
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == c && (depth == 1 || c == '}')) {
        out += c;
        ++i;
        continue;
      }
      if (c == '}') return type_fault("Single '}' encountered in format string");
      size_t end = i + 1;
      for (int open = 1; end < text.size(); ++end) {
        open += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
        if (open == 0) break;
      }
      if (end >= text.size()) return type_fault("expected '}' before end of string");
      TARE_ASSIGN(const std::string piece, field(text.substr(i + 1, end - i - 1), depth));
      out += piece;
      TARE_TRY(runtime_.check_size(out.size()));
      i = end;
    }
    return out;
  }

 private:
  // name[.attribute | [index]]*[!conversion][:specification]
  Out<std::string> field(std::string_view text, int depth) {
    size_t name_end = 0;
    for (bool bracket = false; name_end < text.size(); ++name_end) {
      const char c = text[name_end];
      if (c == '[') bracket = true;
      if (c == ']') bracket = false;
      if (!bracket && (c == '!' || c == ':')) break;
    }
    TARE_ASSIGN(Value value, find(text.substr(0, name_end)));
    std::string_view rest = text.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest[1] != 's' && rest[1] != 'r' && rest[1] != 'a')) {
        return type_fault("unknown conversion in format string");
      }
      TARE_ASSIGN(std::string shown, rest[1] == 's' ? runtime_.print(value) : runtime_.repr(value));
      value = Value::string(std::move(shown));
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') return type_fault("expected ':' after conversion specifier");
    }
    if (!rest.empty()) rest.remove_prefix(1);
    std::string specification;
    if (!rest.empty()) {
      TARE_ASSIGN(specification, run(rest, depth + 1));
    }
    TARE_ASSIGN(const std::string shown, format_value(runtime_, value, specification));
    return safe_ && !value.is_safe() ? escape_html(shown) : shown;
  }

  Out<Value> find(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, first_end);
    Value value;
    if (first.empty() || first.find_first_not_of("0123456789") == std::string_view::npos) {
      size_t index = next_;
      if (first.empty()) {
        if (manual_) return type_fault("cannot switch from manual field specification to automatic field numbering");
        automatic_ = true;
        ++next_;
      } else {
        if (automatic_) return type_fault("cannot switch from automatic field numbering to manual field specification");
        manual_ = true;
        index = first.size() > 6 ? SIZE_MAX : static_cast<size_t>(std::stoul(std::string(first)));
      }
      if (index >= arguments_.positional.size()) {
        return type_fault("Replacement index out of range for positional args tuple");
      }
      value = arguments_.positional[index];
    } else {
      const auto& named = arguments_.named;
      const auto found =
          std::find_if(named.begin(), named.end(), [&](const auto& pair) { return pair.first == first; });
      if (found == named.end()) return type_fault(fmt::format("KeyError: '{}'", first));
      value = found->second;
    }
    for (size_t i = first_end; i < name.size();) {
      if (name[i] == '.') {
        const size_t end = std::min(name.find_first_of(".[", i + 1), name.size());
        TARE_ASSIGN(value, runtime_.attribute(value, name.substr(i + 1, end - i - 1)));
        i = end;
      } else {
        const size_t close = name.find(']', i);
        if (name[i] != '[' || close == std::string_view::npos) return type_fault("Missing ']' in format string");
        const std::string key(name.substr(i + 1, close - i - 1));
        const auto index = key.size() < 10 ? parse_integer(key, 10) : std::nullopt;
        TARE_ASSIGN(value, runtime_.item(value, index && key[0] != '-' ? Value::integer(*index) : Value::string(key)));
        i = close + 1;
      }
    }
    return value;
  }

  Runtime& runtime_;
  const CallArguments& arguments_;
  bool safe_;
  size_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

}  // namespace

Out<std::string> format_value(Runtime& runtime, const Value& value, std::string_view specification) {
  if (specification.empty()) return runtime.print(value);
  TARE_ASSIGN(const Specification spec, parse_specification(specification));
  const bool real_type = std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos && spec.type;
  if (value.is_real() || (value.is_integral() && real_type)) return format_double(value.as_real(), spec);
  if (value.is_bool() && spec.type == '\0') {
    return aligned("", value.as_bool() ? "True" : "False", spec, '<');
  }
  if (value.is_integral()) return format_integer(value.as_integer(), spec);
  if (value.is_string()) {
    if (spec.type != '\0' && spec.type != 's') {
      return type_fault(fmt::format("Unknown format code '{}' for object of type 'str'", spec.type));
    }
    if (spec.align == '=' && spec.fill != "0")
      return type_fault("'=' alignment not allowed in string format specifier");
    std::string text = value.bytes();
    if (spec.precision) text.resize(byte_offset(text, static_cast<size_t>(*spec.precision)));
    return aligned("", text, spec, '<');
  }
  return type_fault(fmt::format("unsupported format string passed to {}.__format__", value.type_name()));
}

Out<Value> brace_format(Runtime& runtime, const Value& format, const CallArguments& arguments) {
  TARE_ASSIGN(std::string text, BraceFormat(runtime, arguments, format.is_safe()).run(format.bytes(), 1));
  return runtime.text(std::move(text), format.is_safe());
}

}  // namespace tare::text::jinja
