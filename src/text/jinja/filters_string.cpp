#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

// The text a filter works on: str(value), which keeps "safe".
Out<Value> as_text(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value;
  TARE_ASSIGN(std::string text, runtime.print(value));
  return Value::string(std::move(text));
}

template <std::string (*map)(std::string_view)>
Out<Value> map_text(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("filter", arguments, {}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  return runtime.text(map(text.bytes()), text.is_safe());
}

Out<Value> string(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("string", arguments, {}));
  return as_text(runtime, self);
}

Out<Value> trim(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("trim", arguments, {"chars"}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  if (!given[0] || given[0]->is_none()) {
    return runtime.text(std::string(strip(text.bytes(), Side::kBoth)), text.is_safe());
  }
  TARE_ASSIGN(const std::string chars, string_argument("trim", given[0], ""));
  const std::string_view set = chars;
  return runtime.text(std::string(strip(text.bytes(), Side::kBoth, &set)), text.is_safe());
}

// Each part between white space, '-', '(', '{', '[' and '<': first letter upper case, the others lower case.
Out<Value> title_filter(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("title", arguments, {}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  const std::string& source = text.bytes();
  const auto separates = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::string out;
  for (size_t i = 0; i < source.size();) {
    size_t end = i;
    const bool separator = separates(code_point_at(source, i).value);
    while (end < source.size()) {
      const CodePoint c = code_point_at(source, end);
      if (separates(c.value) != separator) break;
      end += c.bytes;
    }
    const std::string_view part = std::string_view(source).substr(i, end - i);
    const size_t first = code_point_at(part, 0).bytes;
    out += upper(part.substr(0, first)) + lower(part.substr(first));
    i = end;
  }
  return runtime.text(std::move(out));
}

Out<Value> replace(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("replace", arguments, {"old", "new", "count"}, 2));
  TARE_ASSIGN(const std::string text, runtime.print(self));
  TARE_ASSIGN(const std::string old_text, runtime.print(*given[0]));
  TARE_ASSIGN(const std::string new_text, runtime.print(*given[1]));
  CallArguments plain;
  plain.positional = {Value::string(old_text), Value::string(new_text)};
  if (given[2] && !given[2]->is_none()) plain.positional.push_back(*given[2]);
  return find_string_method("replace")(runtime, Value::string(text), plain);
}

Out<Value> indent(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("indent", arguments, {"width", "first", "blank"}));
  if (!self.is_string()) {
    return type_fault(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", self.type_name()));
  }
  std::string unit(4, ' ');
  if (given[0] && given[0]->is_string()) {
    unit = given[0]->bytes();
  } else {
    TARE_ASSIGN(const Integer width, integer_argument("indent", given[0], 4));
    TARE_TRY(runtime.check_size(width > 0 ? static_cast<size_t>(std::min<Integer>(width, Integer(1) << 40)) : 0));
    unit.assign(width > 0 ? static_cast<size_t>(width) : 0, ' ');
  }
  const bool first = given[1] && Runtime::truth(*given[1]);
  const bool blank = given[2] && Runtime::truth(*given[2]);
  // Lines as str.splitlines sees them; a line break at the end makes one more, empty line.
  const std::string source = self.bytes() + "\n";
  std::string out;
  bool first_line = true;
  for (size_t i = 0; i < source.size();) {
    size_t end = i, next = i;
    while (next < source.size()) {
      const CodePoint c = code_point_at(source, next);
      next += c.bytes;
      if (!is_line_break(c.value)) {
        end = next;
        continue;
      }
      if (c.value == '\r' && next < source.size() && source[next] == '\n') ++next;
      break;
    }
    const std::string_view line = std::string_view(source).substr(i, end - i);
    if (!first_line) out += '\n';
    if (first_line ? first : (blank || !line.empty())) out += unit;
    out += line;
    TARE_TRY(runtime.check_size(out.size()));
    first_line = false;
    i = next;
  }
  return runtime.text(std::move(out), self.is_safe());
}

Out<Value> safe(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("safe", arguments, {}));
  TARE_ASSIGN(std::string text, runtime.print(self));
  return runtime.text(std::move(text), true);
}

Out<Value> escape(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("escape", arguments, {}));
  if (self.is_safe()) return self;
  TARE_ASSIGN(const std::string text, runtime.print(self));
  return runtime.text(escape_html(text), true);
}

Out<Value> force_escape(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("forceescape", arguments, {}));
  TARE_ASSIGN(const std::string text, runtime.print(self));
  return runtime.text(escape_html(text), true);
}

Out<Value> format(Runtime& runtime, const Value& self, CallArguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return type_fault("can't handle positional and keyword arguments at the same time");
  }
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  if (!arguments.named.empty()) {
    Dict named;
    for (auto& [name, value] : arguments.named) named.set(Value::string(name), value);
    TARE_ASSIGN(const Value dict, runtime.dict(std::move(named)));
    return percent_format(runtime, text, dict);
  }
  TARE_ASSIGN(const Value tuple, runtime.tuple(std::move(arguments.positional)));
  return percent_format(runtime, text, tuple);
}

Out<Value> center(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("center", arguments, {"width"}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  CallArguments plain;
  plain.positional = {given[0] ? *given[0] : Value::integer(80)};
  return find_string_method("center")(runtime, text, plain);
}

Out<Value> truncate(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("truncate", arguments, {"length", "killwords", "end", "leeway"}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  TARE_ASSIGN(const Integer length, integer_argument("truncate", given[0], 255));
  const bool kill_words = given[1] && Runtime::truth(*given[1]);
  TARE_ASSIGN(const std::string end, string_argument("truncate", given[2], "..."));
  TARE_ASSIGN(const Integer leeway,
              integer_argument("truncate", given[3] && given[3]->is_none() ? nullptr : given[3], 5));
  const auto end_size = static_cast<Integer>(code_point_count(end));
  if (length < end_size) return type_fault("truncate: length is smaller than its end");
  if (leeway < 0) return type_fault("truncate: leeway is negative");
  const std::string& source = text.bytes();
  if (static_cast<Integer>(code_point_count(source)) <= length + leeway) return text;
  std::string_view kept =
      std::string_view(source).substr(0, byte_offset(source, static_cast<size_t>(length - end_size)));
  if (!kill_words) {
    const size_t space = kept.rfind(' ');
    if (space != std::string_view::npos) kept = kept.substr(0, space);
  }
  return runtime.text(std::string(kept) + end);
}

// Breaks a line into pieces of at most `width`, at spaces and after hyphens. Source: Python's textwrap.
void wrap_line(std::string_view line, size_t width, bool long_words, bool hyphens, std::vector<std::string>& out) {
  std::vector<std::string> chunks;
  std::string chunk;
  bool space = false;
  const auto flush = [&] {
    if (!chunk.empty()) chunks.push_back(std::move(chunk));
    chunk.clear();
  };
  for (size_t i = 0; i < line.size();) {
    const CodePoint c = code_point_at(line, i);
    const bool is_blank = c.value < 0x80 && is_space(c.value);
    if (!chunk.empty() && is_blank != space) flush();
    space = is_blank;
    chunk.append(line.substr(i, c.bytes));
    i += c.bytes;
    const bool letters = chunk.size() > 2 && i < line.size() && is_alpha(code_point_at(line, i).value);
    if (hyphens && c.value == '-' && letters) flush();
  }
  flush();
  std::string current;
  size_t size = 0;
  for (size_t i = 0; i < chunks.size();) {
    const size_t length = code_point_count(chunks[i]);
    const bool blank = strip(chunks[i], Side::kBoth).empty();
    if (blank && current.empty() && !out.empty()) {
      ++i;
      continue;
    }
    if (size + length <= width) {
      current += chunks[i++];
      size += length;
      continue;
    }
    if (length > width && (long_words || current.empty())) {
      const size_t room = long_words ? std::max<size_t>(width - size, size == 0 ? 1 : 0) : length;
      const size_t cut = byte_offset(chunks[i], room);
      current += chunks[i].substr(0, cut);
      chunks[i].erase(0, cut);
      if (chunks[i].empty()) ++i;
    }
    current = std::string(strip(current, Side::kRight));
    if (!current.empty()) out.push_back(std::move(current));
    current.clear();
    size = 0;
  }
  current = std::string(strip(current, Side::kRight));
  if (!current.empty()) out.push_back(std::move(current));
}

Out<Value> wordwrap(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given,
              bind("wordwrap", arguments, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  TARE_ASSIGN(const Integer width, integer_argument("wordwrap", given[0], 79));
  if (width <= 0) return type_fault("wordwrap: width must be positive");
  const bool long_words = !given[1] || Runtime::truth(*given[1]);
  const bool hyphens = !given[3] || Runtime::truth(*given[3]);
  std::string separator = "\n";
  if (given[2] && !given[2]->is_none()) {
    TARE_ASSIGN(separator, string_argument("wordwrap", given[2], "\n"));
  }
  CallArguments none;
  TARE_ASSIGN(const Value lines, find_string_method("splitlines")(runtime, text, none));
  std::string out;
  for (size_t i = 0; i < lines.items().size(); ++i) {
    std::vector<std::string> pieces;
    const auto limit = static_cast<size_t>(std::min<Integer>(width, Integer(1) << 40));
    wrap_line(lines.items()[i].bytes(), limit, long_words, hyphens, pieces);
    if (i) out += separator;
    for (size_t k = 0; k < pieces.size(); ++k) {
      if (k) out += separator;
      out += pieces[k];
    }
    TARE_TRY(runtime.check_size(out.size()));
  }
  return runtime.text(std::move(out));
}

Out<Value> wordcount(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("wordcount", arguments, {}));
  TARE_ASSIGN(const Value text, as_text(runtime, self));
  int64_t count = 0;
  bool inside = false;
  for (size_t i = 0; i < text.bytes().size();) {
    const CodePoint c = code_point_at(text.bytes(), i);
    const bool word = is_word(c.value);
    count += word && !inside;
    inside = word;
    i += c.bytes;
  }
  return Value::integer(count);
}

// Comments and tags away, white space squeezed, entities of escape_html back.
Out<Value> striptags(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("striptags", arguments, {}));
  TARE_ASSIGN(std::string text, runtime.print(self));
  constexpr size_t kNowhere = std::string::npos;
  for (const auto& [open, close] : {std::pair<std::string_view, std::string_view>{"<!--", "-->"}, {"<", ">"}}) {
    std::string kept;
    size_t at = 0;
    for (size_t start; (start = find_text(text, open, at)) != kNowhere;) {
      const size_t end = find_text(text, close, start);
      if (end == kNowhere) break;
      kept.append(text, at, start - at);
      at = end + close.size();
    }
    text = kept.append(text, at);
  }
  std::string squeezed;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (!is_space(c.value)) {
      squeezed.append(text, i, c.bytes);
    } else if (!squeezed.empty() && squeezed.back() != ' ') {
      squeezed += ' ';
    }
    i += c.bytes;
  }
  if (!squeezed.empty() && squeezed.back() == ' ') squeezed.pop_back();
  constexpr std::pair<std::string_view, char> kEntities[] = {{"&lt;", '<'},    {"&gt;", '>'},   {"&quot;", '"'},
                                                             {"&#34;", '"'},   {"&#39;", '\''}, {"&#x27;", '\''},
                                                             {"&apos;", '\''}, {"&amp;", '&'}};
  std::string out;
  for (size_t i = 0; i < squeezed.size();) {
    size_t used = 0;
    for (const auto& [entity, character] : kEntities) {
      if (squeezed.compare(i, entity.size(), entity) != 0) continue;
      out += character;
      used = entity.size();
      break;
    }
    if (!used) out += squeezed[i], used = 1;
    i += used;
  }
  return runtime.text(std::move(out));
}

void percent_encode(std::string& out, std::string_view text, std::string_view kept, bool query) {
  for (const char c : text) {
    if (query && c == ' ') {
      out += '+';
      continue;
    }
    const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || kept.find(c) != kept.npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
}

Out<Value> urlencode(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("urlencode", arguments, {}));
  std::string out;
  if (self.is_dict()) {
    for (const auto& [key, value] : self.dict().entries()) {
      TARE_ASSIGN(const std::string name, runtime.print(key));
      TARE_ASSIGN(const std::string text, runtime.print(value));
      if (!out.empty()) out += '&';
      percent_encode(out, name, "-_.~", true);
      out += '=';
      percent_encode(out, text, "-_.~", true);
    }
  } else {
    TARE_ASSIGN(const std::string text, runtime.print(self));
    percent_encode(out, text, "-_.~/", false);
  }
  return runtime.text(std::move(out));
}

Out<Value> tojson(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii = given[0] && Runtime::truth(*given[0]);
  style.sort_keys = given[3] && Runtime::truth(*given[3]);
  if (given[1] && !given[1]->is_none()) {
    if (given[1]->is_string()) {
      style.indent = given[1]->bytes();
    } else {
      TARE_ASSIGN(const Integer width, integer_argument("tojson", given[1], 0));
      if (width > 1000) return limit_fault("tojson indent over 1000");
      style.indent = std::string(width > 0 ? static_cast<size_t>(width) : 0, ' ');
    }
    style.item_separator = ",";
  }
  if (given[2] && !given[2]->is_none()) {
    TARE_ASSIGN(const std::vector<Value> pair, runtime.iterate(*given[2]));
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      return type_fault("tojson separators must be two strings");
    }
    style.item_separator = pair[0].bytes();
    style.key_separator = pair[1].bytes();
  }
  std::string out;
  TARE_TRY(append_json(runtime, out, self, style));
  return runtime.text(std::move(out));
}

Out<Value> filesizeformat(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("filesizeformat", arguments, {"binary"}));
  const bool binary = given[0] && Runtime::truth(*given[0]);
  std::optional<double> size = self.is_number() ? std::optional(self.as_real()) : std::nullopt;
  if (self.is_string()) size = parse_real(self.bytes());
  if (!size) return type_fault("filesizeformat needs a number");
  const double base = binary ? 1024 : 1000;
  if (*size == 1) return runtime.text("1 Byte");
  if (*size < base) return runtime.text(fmt::format("{} Bytes", static_cast<int64_t>(*size)));
  constexpr std::string_view kUnits = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  while (*size >= unit * base && i + 1 < kUnits.size()) unit *= base, ++i;
  const std::string name = binary ? fmt::format("{}iB", i == 0 ? 'K' : kUnits[i]) : fmt::format("{}B", kUnits[i]);
  return runtime.text(format_real(*size / unit, 'f', 1, false) + " " + name);
}

constexpr NamedNative kFilters[] = {
    {"upper", map_text<upper>},
    {"lower", map_text<lower>},
    {"capitalize", map_text<capitalize>},
    {"title", title_filter},
    {"string", string},
    {"trim", trim},
    {"replace", replace},
    {"indent", indent},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"forceescape", force_escape},
    {"format", format},
    {"center", center},
    {"truncate", truncate},
    {"wordwrap", wordwrap},
    {"wordcount", wordcount},
    {"striptags", striptags},
    {"urlencode", urlencode},
    {"tojson", tojson},
    {"filesizeformat", filesizeformat},
};

// Filters of Jinja2 that chat templates do not get: random ones, and those for HTML pages and debugging.
constexpr std::string_view kNotOffered[] = {"pprint", "random", "urlize", "xmlattr"};

}  // namespace

std::string missing_filter(std::string_view name) {
  if (std::find(std::begin(kNotOffered), std::end(kNotOffered), name) != std::end(kNotOffered)) {
    return fmt::format("filter '{}' is not supported in chat templates", name);
  }
  return fmt::format("no filter named '{}'", name);
}

Native find_string_filter(std::string_view name) {
  return find_native(kFilters, name);
}

Native find_filter(std::string_view name) {
  if (const Native run = find_string_filter(name)) return run;
  if (const Native run = find_sequence_filter(name)) return run;
  return find_selection_filter(name);
}

}  // namespace tare::text::jinja
