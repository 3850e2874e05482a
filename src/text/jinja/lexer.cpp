#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

constexpr size_t kNowhere = std::string_view::npos;

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// One kind of line break, and the last one dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, size_t max_tokens) : source_(std::move(source)), max_tokens_(max_tokens) {}

  Out<std::vector<Token>> run() {
    while (at_ < source_.size()) TARE_TRY(root());
    TARE_TRY(add(TokenKind::kEnd, ""));
    return std::move(tokens_);
  }

 private:
  std::string_view view() const { return source_; }
  bool starts(std::string_view with, size_t at) const {
    return at <= source_.size() && view().substr(at, with.size()) == with;
  }
  char char_at(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
  FaultPtr error(std::string message) const { return fault(FaultKind::kSyntax, std::move(message), line_); }

  Out<void> add(TokenKind kind, std::string text) {
    if (tokens_.size() >= max_tokens_) {
      return fault(FaultKind::kLimit, fmt::format("template has more than {} tokens", max_tokens_), line_);
    }
    tokens_.push_back({kind, std::move(text), line_});
    return {};
  }

  void advance(size_t to) {
    if (to <= at_) return;
    line_ += static_cast<int>(std::count(source_.data() + at_, source_.data() + to, '\n'));
    at_line_start_ = source_[to - 1] == '\n';
    at_ = to;
  }

  size_t skip_space(size_t from) const {
    while (from < source_.size()) {
      const CodePoint c = code_point_at(source_, from);
      if (!is_space(c.value)) break;
      from += c.bytes;
    }
    return from;
  }

  // Past the end of a tag whose closing text stands at `at`, or nowhere. trim: the line break after it goes too
  // (trim_blocks).
  size_t tag_end(std::string_view closing, bool trim, size_t at) const {
    if (char_at(at) == '-' && starts(closing, at + 1)) return skip_space(at + 1 + closing.size());
    if (trim && char_at(at) == '+' && starts(closing, at + 1)) return at + 1 + closing.size();
    if (!starts(closing, at)) return kNowhere;
    const size_t end = at + closing.size();
    return trim && char_at(end) == '\n' ? end + 1 : end;
  }

  // For {% raw %} or {% endraw %} at `at`: past the word and the space after it, else nowhere.
  size_t raw_word(std::string_view word, size_t at) const {
    if (!starts("{%", at)) return kNowhere;
    at += 2;
    if (char_at(at) == '-' || char_at(at) == '+') ++at;
    at = skip_space(at);
    return starts(word, at) ? skip_space(at + word.size()) : kNowhere;
  }

  // The text before a tag at `tag`, with the white space removed that the tag's sign and lstrip_blocks take.
  Out<void> data_before(size_t tag, bool variable) {
    std::string_view text = view().substr(at_, tag - at_);
    const char sign = char_at(tag + 2);
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && !variable) {
      const size_t line_break = text.rfind('\n');
      const size_t start = line_break == kNowhere ? 0 : line_break + 1;
      const std::string_view last_line = text.substr(start);
      if ((start > 0 || at_line_start_) && strip(last_line, Side::kBoth).empty()) text = text.substr(0, start);
    }
    if (!text.empty()) TARE_TRY(add(TokenKind::kData, std::string(text)));
    return {};
  }

  Out<void> root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = view().find('{', tag);
      if (tag == kNowhere) break;
      const char next = char_at(tag + 1);
      if (next == '%' || next == '{' || next == '#') break;
    }
    if (tag == kNowhere) {
      TARE_TRY(add(TokenKind::kData, source_.substr(at_)));
      advance(source_.size());
      return {};
    }
    const char type = source_[tag + 1];
    TARE_TRY(data_before(tag, type == '{'));
    if (const size_t after = raw_word("raw", tag); after != kNowhere) {
      size_t body = kNowhere;
      if (starts("-%}", after)) body = skip_space(after + 3);
      if (starts("%}", after)) body = after + 2;
      if (body != kNowhere) {
        advance(body);
        return raw();
      }
    }
    const char sign = char_at(tag + 2);
    advance(tag + 2 + (sign == '-' || sign == '+'));
    if (type == '#') return comment();
    TARE_TRY(add(type == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, ""));
    return inside(type == '{');
  }

  Out<void> raw() {
    for (size_t tag = at_; (tag = view().find("{%", tag)) != kNowhere; ++tag) {
      const size_t after = raw_word("endraw", tag);
      if (after == kNowhere) continue;
      const size_t end = tag_end("%}", true, after);
      if (end == kNowhere) continue;
      TARE_TRY(data_before(tag, false));
      advance(end);
      return {};
    }
    return error("missing end of raw block");
  }

  Out<void> comment() {
    const size_t close = view().find("#}", at_);
    if (close == kNowhere) return error("missing end of comment");
    const bool sign = close > at_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    advance(tag_end("#}", true, close - sign));
    return {};
  }

  Out<void> inside(bool variable) {
    std::string open;  // brackets, innermost last
    while (at_ < source_.size()) {
      if (open.empty()) {
        const size_t end = variable ? tag_end("}}", false, at_) : tag_end("%}", true, at_);
        if (end != kNowhere) {
          TARE_TRY(add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, ""));
          advance(end);
          return {};
        }
      }
      const CodePoint c = code_point_at(source_, at_);
      if (is_space(c.value)) {
        advance(skip_space(at_));
      } else if (digit(source_[at_])) {
        TARE_TRY(number());
      } else if (is_word(c.value)) {
        size_t end = at_;
        while (end < source_.size()) {
          const CodePoint next = code_point_at(source_, end);
          if (!is_word(next.value)) break;
          end += next.bytes;
        }
        TARE_TRY(add(TokenKind::kName, source_.substr(at_, end - at_)));
        advance(end);
      } else if (c.value == '"' || c.value == '\'') {
        TARE_TRY(string());
      } else {
        TARE_TRY(operation(open));
      }
    }
    return error(variable ? "unexpected end of template, expected '}}'" : "unexpected end of template, expected '%}'");
  }

  Out<void> operation(std::string& open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view two : kTwo) {
      if (!starts(two, at_)) continue;
      TARE_TRY(add(TokenKind::kOperator, std::string(two)));
      advance(at_ + 2);
      return {};
    }
    const char c = source_[at_];
    if (kOne.find(c) == kNowhere) {
      return error(fmt::format("unexpected character '{}'", view().substr(at_, code_point_at(source_, at_).bytes)));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) return error(fmt::format("unexpected '{}'", c));
      if (open.back() != c) return error(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    TARE_TRY(add(TokenKind::kOperator, std::string(1, c)));
    advance(at_ + 1);
    return {};
  }

  // Digits with single underscores between; `end` moves behind them. False when there is none.
  bool digits(size_t& end, std::string& text, bool (*is)(char)) const {
    if (!is(char_at(end))) return false;
    while (is(char_at(end)) || (char_at(end) == '_' && is(char_at(end + 1)))) {
      if (source_[end] != '_') text += source_[end];
      ++end;
    }
    return true;
  }

  Out<void> number() {
    size_t end = at_;
    std::string text;
    const char marker = static_cast<char>(char_at(at_ + 1) | 0x20);
    if (source_[at_] == '0' && (marker == 'x' || marker == 'o' || marker == 'b')) {
      bool (*is)(char) = [](char c) { return digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); };
      if (marker == 'o') is = [](char c) { return c >= '0' && c <= '7'; };
      if (marker == 'b') is = [](char c) { return c == '0' || c == '1'; };
      end += 2;
      if (char_at(end) == '_') ++end;
      text = std::string("0") + marker;
      if (digits(end, text, is)) {
        TARE_TRY(add(TokenKind::kInteger, text));
        advance(end);
        return {};
      }
      end = at_, text.clear();
    }
    digits(end, text, digit);
    bool real = false;
    if (at_ == 0 || source_[at_ - 1] != '.') {  // a.0.1 is two lookups
      if (char_at(end) == '.' && digit(char_at(end + 1))) {
        real = true;
        text += '.';
        digits(++end, text, digit);
      }
      const size_t sign = char_at(end + 1) == '+' || char_at(end + 1) == '-';
      if ((char_at(end) | 0x20) == 'e' && digit(char_at(end + 1 + sign))) {
        real = true;
        text += 'e';
        if (sign) text += source_[end + 1];
        end += 1 + sign;
        digits(end, text, digit);
      }
    }
    if (!real && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != kNowhere) {
      return error("an integer must not start with 0");
    }
    TARE_TRY(add(real ? TokenKind::kFloat : TokenKind::kInteger, text));
    advance(end);
    return {};
  }

  // Python's escapes. An unknown one keeps its backslash.
  Out<void> string() {
    const char quote = source_[at_];
    std::string text;
    for (size_t i = at_ + 1; i < source_.size(); ++i) {
      const char c = source_[i];
      if (c == quote) {
        TARE_TRY(add(TokenKind::kString, std::move(text)));
        advance(i + 1);
        return {};
      }
      if (c != '\\') {
        text += c;
        continue;
      }
      TARE_TRY(escape(++i, text));
    }
    return error("string without end");
  }

  // source_[i] follows a backslash; leaves i at the last byte that was used.
  Out<void> escape(size_t& i, std::string& text) {
    const char c = char_at(i);
    constexpr std::string_view kFrom = "\\'\"abfnrtv";
    constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kFrom.find(c); c != '\0' && simple != kNowhere) {
      text += kTo[simple];
    } else if (c == '\n') {
      // A line that goes on: nothing.
    } else if (c >= '0' && c <= '7') {
      char32_t value = 0;
      size_t n = 0;
      for (; n < 3 && char_at(i + n) >= '0' && char_at(i + n) <= '7'; ++n) {
        value = value * 8 + static_cast<char32_t>(source_[i + n] - '0');
      }
      i += n - 1;
      append_utf8(text, value);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint64_t value = 0;
      for (size_t k = 1; k <= n; ++k) {
        const char h = char_at(i + k);
        const char l = static_cast<char>(h | 0x20);
        if (digit(h)) {
          value = value * 16 + static_cast<uint64_t>(h - '0');
        } else if (l >= 'a' && l <= 'f') {
          value = value * 16 + static_cast<uint64_t>(l - 'a' + 10);
        } else {
          return error(fmt::format("truncated \\{} escape", c));
        }
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
        return error("escape that is no Unicode character");
      }
      i += n;
      append_utf8(text, static_cast<char32_t>(value));
    } else if (c == 'N') {
      return error("\\N{...} escapes are not supported");
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      // Jinja escapes such characters before it resolves escapes, so the number stays.
      const CodePoint point = code_point_at(source_, i);
      const auto value = static_cast<uint32_t>(point.value);
      text += value < 0x100     ? fmt::format("\\x{:02x}", value)
              : value < 0x10000 ? fmt::format("\\u{:04x}", value)
                                : fmt::format("\\U{:08x}", value);
      i += point.bytes - 1;
    } else if (i < source_.size()) {
      text += '\\';
      text += c;
    }
    return {};
  }

  std::string source_;
  size_t max_tokens_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

Out<std::vector<Token>> tokenize(std::string_view source, size_t max_tokens) {
  if (!valid_utf8(source)) return fault(FaultKind::kSyntax, "template is not valid UTF-8");
  return Lexer(normalize_newlines(source), max_tokens).run();
}

}  // namespace tare::text::jinja
