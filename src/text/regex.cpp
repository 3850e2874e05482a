#include "text/regex.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/unicode.h"
#include "text/unicode_additions.h"

namespace tare::text {

namespace {

// What goes between the brackets of a class. White_Space is spelled out: PCRE2's \s also takes U+180E.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// A general category inside a class, with what PCRE2's tables lack.
std::string category(std::string_view name) {
  return fmt::format("\\p{{{}}}{}", name, later_ranges(name));
}

std::string word_chars() {
  return category("L") + category("M") + category("Nd") + R"(\p{Pc})";
}

class Translator {
 public:
  Translator(std::string_view pattern, RegexDialect dialect, std::string_view where)
      : in_(pattern), dialect_(dialect), where_(where) {}

  Result<std::string> run() {
    while (at_ < in_.size()) TARE_TRY(step());
    return out_;
  }

 private:
  Error refuse(std::string_view what) const {
    return unsupported("regular expression is not supported",
                       {.where = where_,
                        .expected = "constructs that tokenizers use",
                        .found = fmt::format("{} in '{}'", what, in_.substr(0, 200))});
  }

  Status step() {
    const char c = in_[at_];
    if (c == '\\') return escape(false);
    if (c == '[') {
      atom_ = out_.size();
      return bracket();
    }
    if (c == '(') {
      groups_.push_back(out_.size());
      out_ += in_[at_++];
      if (at_ < in_.size() && in_[at_] == '?') {
        // (?: (?= (?! (?> (?<= (?<! (?i: are the same in both.
        while (at_ < in_.size() && in_[at_] != ':' && in_[at_] != '=' && in_[at_] != '!' && in_[at_] != '>' &&
               in_[at_] != ')') {
          const char flag = in_[at_];
          if (flag != '?' && flag != '<' && flag != 'i' && flag != '-' && flag != 'm' && flag != 'x') {
            return refuse("a group with unusual flags");
          }
          if (flag == 'm' && dialect_ == RegexDialect::kOniguruma) return refuse("the flag m");
          out_ += in_[at_++];
        }
        if (at_ >= in_.size()) return refuse("an open group");
        if (in_[at_] == ')') {
          out_ += in_[at_++];
          groups_.pop_back();
          return {};
        }
        out_ += in_[at_++];
      }
      return {};
    }
    if (c == ')') {
      if (groups_.empty()) return refuse("a closing parenthesis too many");
      atom_ = groups_.back();
      groups_.pop_back();
      out_ += in_[at_++];
      return {};
    }
    if (c == '{') return braces();
    if (c == '*' || c == '+' || c == '?') {
      out_ += in_[at_++];
      return {};
    }
    if (c == '#' || c == ' ') {
      atom_ = out_.size();
      out_ += in_[at_++];
      return {};
    }
    if (c == '|' || c == '^' || c == '$' || c == '.') {
      atom_ = out_.size();
      out_ += in_[at_++];
      return {};
    }
    atom_ = out_.size();
    const uint32_t bytes = char_bytes(c);
    out_.append(in_.substr(at_, bytes));
    at_ += bytes;
    return {};
  }

  Status braces() {
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) ++end;
    if (end >= in_.size() || in_[end] != '}' || end == at_ + 1) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return {};
    }
    out_.append(in_.substr(at_, end + 1 - at_));
    at_ = end + 1;
    if (dialect_ == RegexDialect::kOniguruma && at_ < in_.size() && in_[at_] == '+') {
      // There x{1,3}+ repeats x{1,3}; PCRE2 would read a possessive quantifier.
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
    return {};
  }

  Status escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    if (!in_class) atom_ = out_.size();
    const auto put_class = [&](std::string_view content, bool negated) -> Status {
      if (in_class && negated) return refuse("a negated class inside a class");
      if (in_class) {
        out_ += content;
      } else {
        out_ += fmt::format("[{}{}]", negated ? "^" : "", content);
      }
      at_ += 2;
      return {};
    };
    switch (c) {
      case 's':
        return put_class(kSpaces, false);
      case 'S':
        return put_class(kSpaces, true);
      case 'd':
        return put_class(category("Nd"), false);
      case 'D':
        return put_class(category("Nd"), true);
      case 'w':
        return put_class(word_chars(), false);
      case 'W':
        return put_class(word_chars(), true);
      case 'h':
        if (dialect_ == RegexDialect::kOniguruma) return put_class("0-9A-Fa-f", false);
        return refuse("\\h");
      case 'p':
      case 'P': {
        size_t end = at_ + 2;
        if (end < in_.size() && in_[end] == '{') {
          end = in_.find('}', end);
          if (end == in_.npos) return refuse("\\p without a closing brace");
          std::string name(in_.substr(at_ + 3, end - at_ - 3));
          if (name == "Letter") name = "L";
          if (name == "Number") name = "N";
          if (name == "Punctuation" || name == "Punct") name = "P";
          if (name == "Alphabetic" || name == "Alpha") return refuse("\\p{Alphabetic}");
          if (name == "White_Space" || name == "Space") return put_property_space(end, in_class, c == 'P');
          put_property(name, in_class, c == 'P');
          at_ = end + 1;
        } else {
          if (end >= in_.size()) return refuse("\\p at the end");
          put_property(in_.substr(end, 1), in_class, c == 'P');
          at_ = end + 1;
        }
        return {};
      }
      case 'u': {  // \uHHHH
        if (at_ + 6 > in_.size()) return refuse("a short \\u");
        for (size_t i = at_ + 2; i < at_ + 6; ++i) {
          if (!std::isxdigit(static_cast<unsigned char>(in_[i]))) return refuse("a malformed \\u");
        }
        out_ += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
        at_ += 6;
        return {};
      }
      case 'b':
        if (!in_class) {
          // PCRE2's idea of a word differs, so the boundary is written with ours.
          out_ += fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word_chars());
          at_ += 2;
          return {};
        }
        break;
      case 'x':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'v':
      case 'e':
      case 'a':
      case 'A':
      case 'z':
      case 'Z':
        if (c == 'v') {
          if (dialect_ == RegexDialect::kOniguruma || dialect_ == RegexDialect::kRust) out_ += "\\x{b}";
          at_ += 2;
          return {};
        }
        break;
      default:
        if (std::isalnum(static_cast<unsigned char>(c))) return refuse(fmt::format("\\{}", c));
        if (static_cast<unsigned char>(c) >= 0x80) {
          const uint32_t bytes = char_bytes(c);
          out_.append(in_.substr(at_ + 1, bytes));
          at_ += 1 + bytes;
          return {};
        }
    }
    out_ += '\\';
    out_ += c;
    at_ += 2;
    return {};
  }

  void put_property(std::string_view name, bool in_class, bool negated) {
    // \P inside a class cannot take ranges away, so there the later characters keep PCRE2's answer.
    if (later_ranges(name).empty() || (in_class && negated)) {
      out_ += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
    } else if (in_class) {
      out_ += category(name);
    } else {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", category(name));
    }
  }

  Status put_property_space(size_t end, bool in_class, bool negated) {
    if (in_class && negated) return refuse("a negated class inside a class");
    if (in_class) {
      out_ += kSpaces;
    } else {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", kSpaces);
    }
    at_ = end + 1;
    return {};
  }

  // A class in brackets. In Oniguruma classes nest: [a[bc]] is [abc]. Only that plain union is translated.
  Status bracket() {
    out_ += '[';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    size_t depth = 1;
    bool first = true;
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == ']' && !first) {
        ++at_;
        if (--depth == 0) {
          out_ += ']';
          return {};
        }
        continue;
      }
      first = false;
      if (c == '\\') {
        TARE_TRY(escape(true));
        continue;
      }
      if (c == '&' && at_ + 1 < in_.size() && in_[at_ + 1] == '&') return refuse("an intersection of classes");
      if (c == '[') {
        if (at_ + 1 < in_.size() && in_[at_ + 1] == ':') return refuse("a POSIX class");
        if (at_ + 1 < in_.size() && in_[at_ + 1] == '^') return refuse("a negated class inside a class");
        ++at_;
        ++depth;
        first = true;
        continue;
      }
      const uint32_t bytes = char_bytes(c);
      if (c == ']') out_ += '\\';
      out_.append(in_.substr(at_, bytes));
      at_ += bytes;
    }
    return refuse("an open bracket");
  }

  std::string_view in_;
  RegexDialect dialect_;
  std::string where_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where the last atom starts in out_
  std::vector<size_t> groups_;
};

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

struct Regex::Compiled {
  std::string pattern;
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context;
};

Result<std::string> translate_regex(std::string_view pattern, RegexDialect dialect, std::string_view where) {
  if (const auto bad = find_invalid_utf8(pattern)) {
    return invalid_input("regular expression is not UTF-8",
                         {.where = std::string(where), .found = fmt::format("byte {}", *bad)});
  }
  return Translator(pattern, dialect, where).run();
}

Result<Regex> Regex::compile(std::string_view pattern, RegexDialect dialect, std::string_view where) {
  constexpr size_t kMaxPattern = size_t{1} << 16;
  if (pattern.size() > kMaxPattern) {
    return invalid_input("regular expression too long", {.where = std::string(where),
                                                         .expected = fmt::format("at most {} bytes", kMaxPattern),
                                                         .found = fmt::format("{}", pattern.size())});
  }
  TARE_ASSIGN(const std::string translated, translate_regex(pattern, dialect, where));
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern = std::string(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (dialect == RegexDialect::kOniguruma) options |= PCRE2_MULTILINE;
  if (dialect == RegexDialect::kRust) options |= PCRE2_DOLLAR_ENDONLY;
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                                     &error, &offset, context.get()));
  if (!compiled->code) {
    unsigned char message[200] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return invalid_input("regular expression does not compile",
                         {.where = std::string(where),
                          .found = fmt::format("'{}': {} near byte {} of its translation", pattern.substr(0, 200),
                                               reinterpret_cast<const char*>(message), offset)});
  }
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  compiled->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled->context.get(), 50'000'000);
  pcre2_set_heap_limit(compiled->context.get(), 1 << 20);  // KiB
  Regex out;
  out.compiled_ = std::move(compiled);
  return out;
}

const std::string& Regex::pattern() const {
  return compiled_->pattern;
}

Status Regex::find_all(std::string_view text, size_t begin, size_t end, std::vector<RegexMatch>& out) const {
  if (begin == end) return {};
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
  const size_t length = end - begin;
  size_t at = 0;
  size_t last_end = SIZE_MAX;
  while (at <= length) {
    int found = pcre2_match(compiled_->code.get(), subject, length, at, PCRE2_NO_UTF_CHECK, data.get(),
                            compiled_->context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its state on the heap
      found = pcre2_match(compiled_->code.get(), subject, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                          compiled_->context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      unsigned char message[200] = {};
      pcre2_get_error_message(found, message, sizeof message);
      return invalid_input("regular expression gives up on this text",
                           {.where = fmt::format("'{}'", compiled_->pattern.substr(0, 200)),
                            .found = reinterpret_cast<const char*>(message)});
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const size_t match_begin = bounds[0];
    const size_t match_end = bounds[1];
    if (match_end == match_begin && match_end == last_end) {
      if (at >= length) break;
      at += char_bytes(text[begin + at]);
      continue;
    }
    out.push_back({begin + match_begin, begin + match_end});
    at = last_end = match_end;
  }
  return {};
}

}  // namespace tare::text
