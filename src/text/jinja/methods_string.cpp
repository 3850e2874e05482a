#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

constexpr size_t kNowhere = std::string_view::npos;

// Most methods of str take no names for their arguments.
Out<Arguments> places(std::string_view callee, const CallArguments& arguments,
                      std::initializer_list<std::string_view> parameters, size_t required = 0) {
  if (!arguments.named.empty()) return type_fault(fmt::format("str.{}() takes no keyword arguments", callee));
  return bind(callee, arguments, parameters, required);
}

// Text given to a method of safe text is escaped first.
std::string argument_text(const Value& self, const Value& argument) {
  return self.is_safe() && !argument.is_safe() ? escape_html(argument.bytes()) : argument.bytes();
}

template <std::string (*map)(std::string_view)>
Out<Value> mapped(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("str method", arguments, {}));
  return runtime.text(map(self.bytes()), self.is_safe());
}

template <Side side>
Out<Value> stripped(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("strip", arguments, {"chars"}));
  if (!given[0] || given[0]->is_none()) {
    return runtime.text(std::string(strip(self.bytes(), side)), self.is_safe());
  }
  TARE_ASSIGN(const std::string chars, string_argument("strip", given[0], ""));
  const std::string_view set = chars;
  return runtime.text(std::string(strip(self.bytes(), side, &set)), self.is_safe());
}

Out<Value> list_of(Runtime& runtime, std::vector<std::string> parts, bool safe) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.push_back(Value::string(std::move(part), safe));
  return runtime.list(std::move(items));
}

template <bool from_right>
Out<Value> split(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("split", arguments, {"sep", "maxsplit"}));
  TARE_ASSIGN(const Integer limit, integer_argument("split", given[1], -1));
  TARE_TRY(runtime.charge_bytes(self.bytes().size()));
  std::string_view text = self.bytes();
  std::vector<std::string> parts;
  const auto more = [&] { return limit < 0 || static_cast<Integer>(parts.size()) < limit; };
  if (!given[0] || given[0]->is_none()) {
    std::vector<std::pair<size_t, size_t>> words;
    bool inside = false;
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = code_point_at(text, i);
      const bool space = is_space(c.value);
      if (!space && !inside) words.emplace_back(i, 0);
      i += c.bytes;
      if (!space) words.back().second = i;
      inside = !space;
    }
    // Beyond the limit the rest stays whole, with the white space at its far end.
    const size_t cuts = limit < 0 ? words.size() : static_cast<size_t>(std::min<Integer>(limit, words.size()));
    const size_t rest = words.size() - cuts;
    if (from_right) std::reverse(words.begin(), words.end());
    for (size_t i = 0; i < cuts; ++i) parts.emplace_back(text.substr(words[i].first, words[i].second - words[i].first));
    if (rest > 0) parts.emplace_back(from_right ? text.substr(0, words[cuts].second) : text.substr(words[cuts].first));
  } else {
    TARE_ASSIGN(const std::string separator, string_argument("split", given[0], ""));
    if (separator.empty()) return type_fault("empty separator");
    size_t at = from_right ? text.size() : 0;
    for (;;) {
      const size_t found = !more() ? kNowhere
                           : from_right
                               ? text.rfind(separator, at < separator.size() ? kNowhere : at - separator.size())
                               : find_text(text, separator, at);
      const bool none = found == kNowhere || (from_right && (at < separator.size() || found + separator.size() > at));
      if (none) break;
      parts.emplace_back(from_right ? text.substr(found + separator.size(), at - found - separator.size())
                                    : text.substr(at, found - at));
      at = from_right ? found : found + separator.size();
    }
    parts.emplace_back(from_right ? text.substr(0, at) : text.substr(at));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return list_of(runtime, std::move(parts), self.is_safe());
}

Out<Value> splitlines(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("splitlines", arguments, {"keepends"}));
  const bool keep = given[0] && Runtime::truth(*given[0]);
  const std::string& text = self.bytes();
  TARE_TRY(runtime.charge_bytes(text.size()));
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    size_t next = i + c.bytes;
    if (is_line_break(c.value)) {
      if (c.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      parts.push_back(text.substr(start, (keep ? next : i) - start));
      start = next;
    }
    i = next;
  }
  if (start < text.size()) parts.push_back(text.substr(start));
  return list_of(runtime, std::move(parts), self.is_safe());
}

// The part of the text that start and end (code points, as in a slice) leave, and where it begins.
struct Window {
  std::string_view text;
  size_t first_index = 0;
  bool valid = true;  // false: start lies behind the end, where even "" is not found
};
Out<Window> window(Runtime& runtime, const Value& self, const Value* start, const Value* end) {
  Window whole{self.bytes(), 0, true};
  if ((!start || start->is_none()) && (!end || end->is_none())) return whole;
  TARE_TRY(runtime.charge_bytes(self.bytes().size()));
  const auto size = static_cast<Integer>(code_point_count(self.bytes()));
  TARE_ASSIGN(Integer from, integer_argument("find", start && start->is_none() ? nullptr : start, 0));
  TARE_ASSIGN(Integer to, integer_argument("find", end && end->is_none() ? nullptr : end, size));
  if (from < 0) from = std::max<Integer>(from + size, 0);
  if (to < 0) to = std::max<Integer>(to + size, 0);
  to = std::min(to, size);
  if (from > to) return Window{{}, 0, false};
  const size_t first = byte_offset(self.bytes(), static_cast<size_t>(from));
  const size_t last = byte_offset(self.bytes(), static_cast<size_t>(to));
  return Window{std::string_view(self.bytes()).substr(first, last - first), static_cast<size_t>(from), true};
}

template <bool at_start>
Out<Value> affix(Runtime& runtime, const Value& self, CallArguments& arguments) {
  constexpr std::string_view kName = at_start ? "startswith" : "endswith";
  TARE_ASSIGN(const Arguments given, places(kName, arguments, {"affix", "start", "end"}, 1));
  TARE_ASSIGN(const Window part, window(runtime, self, given[1], given[2]));
  std::vector<Value> choices = {*given[0]};
  if (given[0]->is_tuple()) choices = given[0]->items();
  for (const Value& choice : choices) {
    if (!choice.is_string()) {
      return type_fault(fmt::format("{} first arg must be str or a tuple of str, not {}", kName, choice.type_name()));
    }
    if (part.valid && (at_start ? part.text.starts_with(choice.bytes()) : part.text.ends_with(choice.bytes()))) {
      return Value::boolean(true);
    }
  }
  return Value::boolean(false);
}

template <bool from_right, bool must_exist>
Out<Value> find(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("find", arguments, {"sub", "start", "end"}, 1));
  TARE_ASSIGN(const std::string needle, string_argument("find", given[0], ""));
  TARE_ASSIGN(const Window part, window(runtime, self, given[1], given[2]));
  TARE_TRY(runtime.charge_bytes(part.text.size()));
  const size_t found = !part.valid ? kNowhere : from_right ? part.text.rfind(needle) : find_text(part.text, needle);
  if (found == kNowhere) {
    if (must_exist) return type_fault("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<Integer>(part.first_index + code_point_count(part.text.substr(0, found))));
}

Out<Value> count(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("count", arguments, {"sub", "start", "end"}, 1));
  TARE_ASSIGN(const std::string needle, string_argument("count", given[0], ""));
  TARE_ASSIGN(const Window part, window(runtime, self, given[1], given[2]));
  TARE_TRY(runtime.charge_bytes(part.text.size()));
  if (!part.valid) return Value::integer(0);
  if (needle.empty()) return Value::integer(static_cast<Integer>(code_point_count(part.text) + 1));
  Integer found = 0;
  for (size_t at = 0; (at = find_text(part.text, needle, at)) != kNowhere; at += needle.size()) ++found;
  return Value::integer(found);
}

Out<Value> replace(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("replace", arguments, {"old", "new", "count"}, 2));
  for (size_t i = 0; i < 2; ++i) TARE_TRY(string_argument("replace", given[i], ""));
  TARE_ASSIGN(const Integer limit, integer_argument("replace", given[2], -1));
  const std::string& text = self.bytes();
  const std::string old_text = argument_text(self, *given[0]), new_text = argument_text(self, *given[1]);
  TARE_TRY(runtime.charge_bytes(text.size()));
  std::string out;
  Integer done = 0;
  size_t at = 0;
  while (limit < 0 || done < limit) {
    if (old_text.empty()) {  // before each character and at the end
      out += new_text;
      ++done;
      if (at == text.size()) break;
      const size_t n = code_point_at(text, at).bytes;
      out.append(text, at, n);
      at += n;
    } else {
      const size_t found = find_text(text, old_text, at);
      if (found == kNowhere) break;
      out.append(text, at, found - at);
      out += new_text;
      at = found + old_text.size();
      ++done;
    }
    TARE_TRY(runtime.check_size(out.size()));
  }
  out.append(text, at);
  return runtime.text(std::move(out), self.is_safe());
}

Out<Value> join(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("join", arguments, {"iterable"}, 1));
  TARE_ASSIGN(const std::vector<Value> parts, runtime.iterate(*given[0]));
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_string()) {
      return type_fault(fmt::format("sequence item {}: expected str instance, {} found", i, parts[i].type_name()));
    }
    if (i) out += self.bytes();
    out += argument_text(self, parts[i]);
    TARE_TRY(runtime.check_size(out.size()));
  }
  return runtime.text(std::move(out), self.is_safe());
}

enum class Align { kLeft, kRight, kCenter };
template <Align align>
Out<Value> padded(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("center", arguments, {"width", "fillchar"}, 1));
  TARE_ASSIGN(const Integer width, integer_argument("center", given[0], 0));
  TARE_ASSIGN(const std::string fill, string_argument("center", given[1], " "));
  if (code_point_count(fill) != 1) return type_fault("The fill character must be exactly one character long");
  const auto size = static_cast<Integer>(code_point_count(self.bytes()));
  if (width <= size) return self;
  if (width > static_cast<Integer>(runtime.limits().max_output_bytes)) return runtime.check_size(kNowhere).error();
  const auto room = static_cast<size_t>(width - size);
  // Python puts the odd blank of center() left when the width is odd.
  const size_t left = align == Align::kLeft    ? 0
                      : align == Align::kRight ? room
                                               : room / 2 + (room & static_cast<size_t>(width) & 1);
  std::string out;
  for (size_t i = 0; i < left; ++i) out += fill;
  out += self.bytes();
  for (size_t i = left; i < room; ++i) out += fill;
  return runtime.text(std::move(out), self.is_safe());
}

Out<Value> zfill(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("zfill", arguments, {"width"}, 1));
  TARE_ASSIGN(const Integer width, integer_argument("zfill", given[0], 0));
  const auto size = static_cast<Integer>(code_point_count(self.bytes()));
  if (width <= size) return self;
  if (width > static_cast<Integer>(runtime.limits().max_output_bytes)) return runtime.check_size(kNowhere).error();
  std::string out = self.bytes();
  const bool sign = !out.empty() && (out[0] == '-' || out[0] == '+');
  out.insert(sign, static_cast<size_t>(width - size), '0');
  return runtime.text(std::move(out), self.is_safe());
}

template <bool from_right>
Out<Value> partition(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("partition", arguments, {"sep"}, 1));
  TARE_ASSIGN(const std::string separator, string_argument("partition", given[0], ""));
  if (separator.empty()) return type_fault("empty separator");
  const std::string& text = self.bytes();
  TARE_TRY(runtime.charge_bytes(text.size()));
  const size_t found = from_right ? text.rfind(separator) : find_text(text, separator);
  const auto part = [&](std::string bytes) { return Value::string(std::move(bytes), self.is_safe()); };
  if (found == kNowhere) {
    return from_right ? runtime.tuple({part(""), part(""), self}) : runtime.tuple({self, part(""), part("")});
  }
  return runtime.tuple({part(text.substr(0, found)), part(separator), part(text.substr(found + separator.size()))});
}

template <bool at_start>
Out<Value> remove_affix(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("removeprefix", arguments, {"affix"}, 1));
  TARE_ASSIGN(const std::string gone, string_argument("removeprefix", given[0], ""));
  std::string_view text = self.bytes();
  if (at_start && text.starts_with(gone)) text.remove_prefix(gone.size());
  if (!at_start && text.ends_with(gone)) text.remove_suffix(gone.size());
  return runtime.text(std::string(text), self.is_safe());
}

template <bool (*predicate)(char32_t), bool empty>
Out<Value> every(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(places("str method", arguments, {}));
  const std::string& text = self.bytes();
  TARE_TRY(runtime.charge_bytes(text.size()));
  if (text.empty()) return Value::boolean(empty);
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (!predicate(c.value)) return Value::boolean(false);
    i += c.bytes;
  }
  return Value::boolean(true);
}

template <bool upper_case>
Out<Value> in_case(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(places("str method", arguments, {}));
  const std::string& text = self.bytes();
  TARE_TRY(runtime.charge_bytes(text.size()));
  bool cased = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (is_cased(c.value)) {
      if (!(upper_case ? is_upper(c.value) : is_lower(c.value))) return Value::boolean(false);
      cased = true;
    }
    i += c.bytes;
  }
  return Value::boolean(cased);
}

Out<Value> istitle(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(places("str method", arguments, {}));
  const std::string& text = self.bytes();
  TARE_TRY(runtime.charge_bytes(text.size()));
  bool inside = false, cased = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (is_cased(c.value)) {
      if (is_lower(c.value) != inside) return Value::boolean(false);
      inside = cased = true;
    } else {
      inside = false;
    }
    i += c.bytes;
  }
  return Value::boolean(cased);
}

Out<Value> isidentifier(Runtime& runtime, const Value& self, CallArguments& arguments) {
  const std::string& text = self.bytes();
  if (text.empty() || is_numeric(code_point_at(text, 0).value)) return Value::boolean(false);
  return every<is_word, false>(runtime, self, arguments);
}

Out<Value> expandtabs(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("expandtabs", arguments, {"tabsize"}));
  TARE_ASSIGN(const Integer size, integer_argument("expandtabs", given[0], 8));
  std::string out;
  Integer column = 0;
  for (const char c : self.bytes()) {
    if (c == '\t') {
      const Integer room = size > 0 ? size - column % size : 0;
      if (room > static_cast<Integer>(runtime.limits().max_output_bytes)) return runtime.check_size(kNowhere).error();
      out.append(static_cast<size_t>(room), ' ');
      column += room;
    } else {
      out += c;
      if (c == '\n' || c == '\r') {
        column = 0;
      } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
        ++column;
      }
    }
    TARE_TRY(runtime.check_size(out.size()));
  }
  return runtime.text(std::move(out), self.is_safe());
}

Out<Value> format(Runtime& runtime, const Value& self, CallArguments& arguments) {
  return brace_format(runtime, self, arguments);
}
Out<Value> format_map(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, places("format_map", arguments, {"mapping"}, 1));
  if (!given[0]->is_dict()) return type_fault("format_map() needs a mapping");
  CallArguments named;
  for (const auto& [key, value] : given[0]->dict().entries()) {
    if (key.is_string()) named.named.emplace_back(key.bytes(), value);
  }
  return brace_format(runtime, self, named);
}

Out<Value> not_offered(Runtime&, const Value&, CallArguments&) {
  return type_fault("this str method is not supported in chat templates");
}

bool is_ascii(char32_t c) {
  return c < 0x80;
}

constexpr NamedNative kMethods[] = {
    {"strip", stripped<Side::kBoth>},
    {"lstrip", stripped<Side::kLeft>},
    {"rstrip", stripped<Side::kRight>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", splitlines},
    {"startswith", affix<true>},
    {"endswith", affix<false>},
    {"replace", replace},
    {"join", join},
    {"upper", mapped<upper>},
    {"lower", mapped<lower>},
    {"title", mapped<title>},
    {"capitalize", mapped<capitalize>},
    {"casefold", mapped<casefold>},
    {"swapcase", mapped<swapcase>},
    {"find", find<false, false>},
    {"rfind", find<true, false>},
    {"index", find<false, true>},
    {"rindex", find<true, true>},
    {"count", count},
    {"format", format},
    {"format_map", format_map},
    {"center", padded<Align::kCenter>},
    {"ljust", padded<Align::kLeft>},
    {"rjust", padded<Align::kRight>},
    {"zfill", zfill},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"isspace", every<is_space, false>},
    {"isalpha", every<is_alpha, false>},
    {"isalnum", every<is_alnum, false>},
    {"isdigit", every<is_digit, false>},
    {"isdecimal", every<is_decimal, false>},
    {"isnumeric", every<is_numeric, false>},
    {"isprintable", every<is_printable, true>},
    {"isascii", every<is_ascii, true>},
    {"isupper", in_case<true>},
    {"islower", in_case<false>},
    {"istitle", istitle},
    {"isidentifier", isidentifier},
    {"expandtabs", expandtabs},
    {"encode", not_offered},
    {"translate", not_offered},
    {"maketrans", not_offered},
};

}  // namespace

Native find_string_method(std::string_view name) {
  return find_native(kMethods, name);
}

}  // namespace tare::text::jinja
