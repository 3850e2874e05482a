#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/result.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {
constexpr int kMaxPrintDepth = 120;  // containers are at most 100 deep, but namespaces can hold each other
}

std::string integer_text(Integer value) {
  return fmt::format("{}", value);
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') out = "-", text.remove_prefix(1);
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  std::string_view written = text.substr(e + 1);
  if (written[0] == '+') written.remove_prefix(1);
  std::from_chars(written.data(), written.data() + written.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string repr_text(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const char32_t c = point.value;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text.substr(i, point.bytes));
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
    i += point.bytes;
  }
  return out + quote;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Out<std::string> Runtime::print(const Value& value) {
  if (value.is_string()) return value.bytes();
  if (value.is_undefined()) return std::string();
  return repr(value);
}

Out<std::string> Runtime::repr(const Value& value) {
  std::string out;
  TARE_TRY(append_repr(out, value, 0));
  TARE_TRY(charge_bytes(out.size()));
  return out;
}

Out<void> Runtime::append_repr(std::string& out, const Value& value, int depth) {
  if (depth > kMaxPrintDepth) return limit_fault("value nested too deep to print");
  TARE_TRY(check_size(out.size()));
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "True" : "False";
  } else if (value.is_integer()) {
    out += integer_text(value.as_integer());
  } else if (value.is_real()) {
    out += real_text(value.as_real());
  } else if (value.is_string()) {
    out += value.is_safe() ? "Markup(" + repr_text(value.bytes()) + ")" : repr_text(value.bytes());
  } else if (value.is_sequence()) {
    const Sequence& sequence = value.sequence();
    if (sequence.form == SequenceForm::kRange) {
      out += sequence.label;
      return {};
    }
    const bool tuple = sequence.form == SequenceForm::kTuple;
    const bool view = sequence.form >= SequenceForm::kDictKeys;
    if (view) out += fmt::format("{}(", value.type_name());
    out += tuple ? '(' : '[';
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i) out += ", ";
      TARE_TRY(append_repr(out, sequence.items[i], depth + 1));
    }
    if (tuple && sequence.items.size() == 1) out += ',';
    out += tuple ? ')' : ']';
    if (view) out += ')';
  } else if (value.is_dict()) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.dict().entries()) {
      if (!first) out += ", ";
      first = false;
      TARE_TRY(append_repr(out, key, depth + 1));
      out += ": ";
      TARE_TRY(append_repr(out, item, depth + 1));
    }
    out += '}';
  } else {
    TARE_ASSIGN(const std::string shown, value.object()->print(*this, depth));
    out += shown;
  }
  return {};
}

namespace {

void append_json_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const char32_t c = point.value;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
          out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
        } else if (ascii && c >= 0x10000) {
          const auto rest = static_cast<uint32_t>(c) - 0x10000;
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        } else {
          out.append(text.substr(i, point.bytes));
        }
    }
    i += point.bytes;
  }
  out += '"';
}

std::string json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return real_text(value);
}

Out<std::string> json_key(const Value& key) {
  if (key.is_string()) return key.bytes();
  if (key.is_bool()) return std::string(key.as_bool() ? "true" : "false");
  if (key.is_none()) return std::string("null");
  if (key.is_integer()) return integer_text(key.as_integer());
  if (key.is_real()) return json_real(key.as_real());
  return type_fault(fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
}

void line_break(std::string& out, const JsonStyle& style, int depth) {
  if (!style.indent) return;
  out += '\n';
  for (int i = 0; i < depth; ++i) out += *style.indent;
}

Out<void> append_json_dict(Runtime& runtime, std::string& out, const Value& value, const JsonStyle& style, int depth) {
  std::vector<const Dict::Entry*> entries;
  for (const Dict::Entry& entry : value.dict().entries()) entries.push_back(&entry);
  if (style.sort_keys) {
    FaultPtr failed;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
      if (failed) return false;
      Out<bool> less = runtime.less(a->first, b->first);
      if (!less.ok()) failed = std::move(less).error();
      return !failed && *less;
    });
    if (failed) return failed;
  }
  if (entries.empty()) {
    out += "{}";
    return {};
  }
  out += '{';
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i) out += style.item_separator;
    line_break(out, style, depth + 1);
    TARE_ASSIGN(const std::string key, json_key(entries[i]->first));
    append_json_string(out, key, style.ascii);
    out += style.key_separator;
    TARE_TRY(append_json(runtime, out, entries[i]->second, style, depth + 1));
  }
  line_break(out, style, depth);
  out += '}';
  return {};
}

}  // namespace

Out<void> append_json(Runtime& runtime, std::string& out, const Value& value, const JsonStyle& style, int depth) {
  if (depth > kMaxPrintDepth) return limit_fault("value nested too deep for JSON");
  TARE_TRY(runtime.check_size(out.size()));
  if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_integer()) {
    out += integer_text(value.as_integer());
  } else if (value.is_real()) {
    out += json_real(value.as_real());
  } else if (value.is_string()) {
    append_json_string(out, value.bytes(), style.ascii);
  } else if (value.is_list() || value.is_tuple()) {
    const std::vector<Value>& items = value.items();
    if (items.empty()) {
      out += "[]";
      return {};
    }
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out += style.item_separator;
      line_break(out, style, depth + 1);
      TARE_TRY(append_json(runtime, out, items[i], style, depth + 1));
    }
    line_break(out, style, depth);
    out += ']';
  } else if (value.is_dict()) {
    return append_json_dict(runtime, out, value, style, depth);
  } else {
    return type_fault(fmt::format("Object of type {} is not JSON serializable", value.type_name()));
  }
  return {};
}

}  // namespace tare::text::jinja
