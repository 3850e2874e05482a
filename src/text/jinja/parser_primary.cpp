#include <fmt/format.h>

#include <charconv>

#include "text/jinja/parser_state.h"

namespace tare::text::jinja {

Parser::Parsed Parser::integer_literal(const Token& token) const {
  Integer value = 0;
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[1] >= 'b') {
    base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  for (const char c : digits) {
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (__builtin_mul_overflow(value, Integer(base), &value) || __builtin_add_overflow(value, Integer(digit), &value)) {
      return error("integer literal too large");
    }
  }
  ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
  node->value = Value::integer(value);
  return node;
}

Parser::Parsed Parser::primary(bool attributes) {
  const Token token = now();
  switch (token.kind) {
    case TokenKind::kName: {
      take();
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        node->value = Value::boolean(token.text[0] == 't' || token.text[0] == 'T');
      } else if (token.text == "none" || token.text == "None") {
        node->value = None{};
      } else if (token.text[0] >= '0' && token.text[0] <= '9') {
        return error(fmt::format("invalid name '{}'", token.text), token.line);
      } else {
        node->kind = ExpressionKind::kName;
        node->name = intern(token.text);
        if (attributes && skip_operator(".")) {
          note(node->name, false);
          TARE_ASSIGN(const std::string attribute, expect_name());
          TARE_ASSIGN(node, unary_node(ExpressionKind::kAttribute, token.line, std::move(node)));
          node->text = attribute;
          return node;
        }
        note(node->name, false);
      }
      return node;
    }
    case TokenKind::kString: {
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      std::string text;
      while (now().kind == TokenKind::kString) text += take().text;
      node->value = Value::string(std::move(text));
      return node;
    }
    case TokenKind::kInteger:
      take();
      return integer_literal(token);
    case TokenKind::kFloat: {
      take();
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      node->value = Value::real(value);
      return node;
    }
    default:
      break;
  }
  const Level level(nesting_);
  TARE_TRY(check_nesting());
  if (skip_operator("(")) {
    TARE_ASSIGN(ExpressionPtr node, tuple({.parentheses = true}));
    TARE_TRY(expect_operator(")"));
    return node;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  return unexpected("an expression");
}

Parser::Parsed Parser::list() {
  ExpressionPtr node = make(ExpressionKind::kList, take().line);
  while (!is_operator("]")) {
    if (!node->children.empty()) TARE_TRY(expect_operator(","));
    if (is_operator("]")) break;
    TARE_ASSIGN(ExpressionPtr item, expression());
    TARE_TRY(adopt(*node, std::move(item)));
  }
  TARE_TRY(expect_operator("]"));
  return node;
}

Parser::Parsed Parser::dict() {
  ExpressionPtr node = make(ExpressionKind::kDict, take().line);
  while (!is_operator("}")) {
    if (!node->children.empty()) TARE_TRY(expect_operator(","));
    if (is_operator("}")) break;
    TARE_ASSIGN(ExpressionPtr key, expression());
    TARE_TRY(expect_operator(":"));
    TARE_ASSIGN(ExpressionPtr value, expression());
    TARE_TRY(adopt(*node, std::move(key)));
    TARE_TRY(adopt(*node, std::move(value)));
  }
  TARE_TRY(expect_operator("}"));
  return node;
}

}  // namespace tare::text::jinja
