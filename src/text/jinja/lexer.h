#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/fault.h"

namespace tare::text::jinja {

enum class TokenKind {
  kData,           // text outside tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,   // text is the value, escapes resolved
  kInteger,  // text is the literal without underscores
  kFloat,
  kOperator,  // text is the operator
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

/// Splits a template into tokens with trim_blocks and lstrip_blocks on and the last newline dropped, as chat templates
/// are read. Line breaks become "\n". Comments vanish, raw blocks become data. Errors: kSyntax with line; kLimit when
/// there are more than max_tokens. Source: the Jinja template designer documentation, "Whitespace Control"; checked
/// against Jinja2 3.1.6.
Out<std::vector<Token>> tokenize(std::string_view source, size_t max_tokens);

}  // namespace tare::text::jinja
