#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/natives.h"
#include "text/jinja/parser_state.h"

namespace tare::text::jinja {

ExpressionPtr Parser::make(ExpressionKind kind, int line) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  return node;
}

Out<void> Parser::adopt(Expression& parent, ExpressionPtr child) const {
  if (child) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > limits_.max_tree_depth) {
      return fault(FaultKind::kLimit, fmt::format("expression deeper than {} operations", limits_.max_tree_depth),
                   parent.line);
    }
  }
  parent.children.push_back(std::move(child));
  return {};
}

Parser::Parsed Parser::unary_node(ExpressionKind kind, int line, ExpressionPtr child) const {
  ExpressionPtr node = make(kind, line);
  TARE_TRY(adopt(*node, std::move(child)));
  return node;
}

Parser::Parsed Parser::binary_node(ExpressionKind kind, int line, ExpressionPtr left, ExpressionPtr right) const {
  ExpressionPtr node = make(kind, line);
  TARE_TRY(adopt(*node, std::move(left)));
  TARE_TRY(adopt(*node, std::move(right)));
  return node;
}

Parser::Parsed Parser::tuple(const TupleRules& rules) {
  const int line = now().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) TARE_TRY(expect_operator(","));
    if (now().kind == TokenKind::kVariableEnd || now().kind == TokenKind::kBlockEnd || is_operator(")") ||
        (!rules.end_word.empty() && is_word(rules.end_word))) {
      break;
    }
    TARE_ASSIGN(ExpressionPtr item, rules.simplified ? primary(rules.attributes) : expression(rules.condition));
    items.push_back(std::move(item));
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!rules.parentheses) return unexpected("an expression");
  }
  ExpressionPtr node = make(ExpressionKind::kTuple, line);
  for (ExpressionPtr& item : items) TARE_TRY(adopt(*node, std::move(item)));
  return node;
}

Parser::Parsed Parser::expression(bool with_condition) {
  const Level level(nesting_);
  TARE_TRY(check_nesting());
  return with_condition ? condition() : disjunction();
}

Parser::Parsed Parser::condition() {
  const size_t unknown = unknown_.size();
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr node, disjunction());
  while (skip_word("if")) {
    ExpressionPtr choice = make(ExpressionKind::kCondition, line);
    TARE_TRY(adopt(*choice, std::move(node)));
    TARE_ASSIGN(ExpressionPtr test, disjunction());
    TARE_TRY(adopt(*choice, std::move(test)));
    if (skip_word("else")) {
      const Level level(nesting_);
      TARE_TRY(check_nesting());
      TARE_ASSIGN(ExpressionPtr other, condition());
      TARE_TRY(adopt(*choice, std::move(other)));
    } else {
      TARE_TRY(adopt(*choice, nullptr));
    }
    forgive_unknown(unknown);
    node = std::move(choice);
  }
  return node;
}

Parser::Parsed Parser::disjunction() {
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr left, conjunction());
  while (skip_word("or")) {
    TARE_ASSIGN(ExpressionPtr right, conjunction());
    TARE_ASSIGN(left, binary_node(ExpressionKind::kOr, line, std::move(left), std::move(right)));
  }
  return left;
}

Parser::Parsed Parser::conjunction() {
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr left, negation());
  while (skip_word("and")) {
    TARE_ASSIGN(ExpressionPtr right, negation());
    TARE_ASSIGN(left, binary_node(ExpressionKind::kAnd, line, std::move(left), std::move(right)));
  }
  return left;
}

Parser::Parsed Parser::negation() {
  const int line = now().line;
  if (!skip_word("not")) return comparison();
  const Level level(nesting_);
  TARE_TRY(check_nesting());
  TARE_ASSIGN(ExpressionPtr operand, negation());
  return unary_node(ExpressionKind::kNot, line, std::move(operand));
}

Parser::Parsed Parser::comparison() {
  struct Row {
    std::string_view text;
    Comparison comparison;
  };
  constexpr Row kRows[] = {{"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
                           {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
                           {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual}};
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr left, sum());
  ExpressionPtr node;
  for (;;) {
    std::optional<Comparison> found;
    for (const Row& row : kRows) {
      if (skip_operator(row.text)) {
        found = row.comparison;
        break;
      }
    }
    if (!found && skip_word("in")) found = Comparison::kIn;
    if (!found && is_word("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      take(), take();
      found = Comparison::kNotIn;
    }
    if (!found) break;
    if (!node) {
      node = make(ExpressionKind::kComparison, line);
      TARE_TRY(adopt(*node, std::move(left)));
    }
    node->comparisons.push_back(*found);
    TARE_ASSIGN(ExpressionPtr right, sum());
    TARE_TRY(adopt(*node, std::move(right)));
  }
  return node ? std::move(node) : std::move(left);
}

Parser::Parsed Parser::sum() {
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr left, concat());
  while (is_operator("+") || is_operator("-")) {
    const Operation operation = take().text == "+" ? Operation::kAdd : Operation::kSubtract;
    TARE_ASSIGN(ExpressionPtr right, concat());
    TARE_ASSIGN(left, binary_node(ExpressionKind::kBinary, line, std::move(left), std::move(right)));
    left->operation = operation;
  }
  return left;
}

Parser::Parsed Parser::concat() {
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr first, product());
  if (!is_operator("~")) return first;
  ExpressionPtr node = make(ExpressionKind::kConcat, line);
  TARE_TRY(adopt(*node, std::move(first)));
  while (skip_operator("~")) {
    TARE_ASSIGN(ExpressionPtr next, product());
    TARE_TRY(adopt(*node, std::move(next)));
  }
  return node;
}

Parser::Parsed Parser::product() {
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr left, power());
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const std::string text = take().text;
    TARE_ASSIGN(ExpressionPtr right, power());
    TARE_ASSIGN(left, binary_node(ExpressionKind::kBinary, line, std::move(left), std::move(right)));
    left->operation = text == "*"    ? Operation::kMultiply
                      : text == "/"  ? Operation::kDivide
                      : text == "//" ? Operation::kFloorDivide
                                     : Operation::kModulo;
  }
  return left;
}

Parser::Parsed Parser::power() {
  const int line = now().line;
  TARE_ASSIGN(ExpressionPtr left, unary(true));
  while (skip_operator("**")) {
    TARE_ASSIGN(ExpressionPtr right, unary(true));
    TARE_ASSIGN(left, binary_node(ExpressionKind::kBinary, line, std::move(left), std::move(right)));
    left->operation = Operation::kPower;
  }
  return left;
}

Parser::Parsed Parser::unary(bool with_filter) {
  const Level level(nesting_);
  TARE_TRY(check_nesting());
  const int line = now().line;
  ExpressionPtr node;
  if (is_operator("-") || is_operator("+")) {
    const bool negative = take().text == "-";
    TARE_ASSIGN(ExpressionPtr operand, unary(false));
    TARE_ASSIGN(node,
                unary_node(negative ? ExpressionKind::kNegative : ExpressionKind::kPositive, line, std::move(operand)));
  } else {
    TARE_ASSIGN(node, primary(false));
  }
  TARE_ASSIGN(node, postfix(std::move(node)));
  if (with_filter) return filters_and_tests(std::move(node));
  return node;
}

Parser::Parsed Parser::postfix(ExpressionPtr node) {
  for (;;) {
    if (is_operator(".") || is_operator("[")) {
      TARE_ASSIGN(node, subscript(std::move(node)));
    } else if (is_operator("(")) {
      TARE_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Parser::Parsed Parser::filters_and_tests(ExpressionPtr node) {
  for (;;) {
    if (is_operator("|")) {
      TARE_ASSIGN(node, filter(std::move(node), false));
    } else if (is_word("is")) {
      TARE_ASSIGN(node, test(std::move(node)));
    } else if (is_operator("(")) {
      TARE_ASSIGN(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Parser::Parsed Parser::filter(ExpressionPtr node, bool inline_start) {
  while (is_operator("|") || inline_start) {
    if (!inline_start) take();
    inline_start = false;
    const int line = now().line;
    TARE_ASSIGN(std::string name, expect_name());
    while (skip_operator(".")) {
      TARE_ASSIGN(const std::string part, expect_name());
      name += "." + part;
    }
    ExpressionPtr filter = make(ExpressionKind::kFilter, line);
    TARE_TRY(adopt(*filter, std::move(node)));
    if (is_operator("(")) {
      int depth = 0;
      TARE_ASSIGN(filter->call, call_arguments(depth));
      filter->depth = std::max(filter->depth, depth + 1);
    } else {
      filter->call = std::make_unique<CallSignature>();
    }
    filter->native = find_filter(name);
    if (!filter->native) unknown_.push_back({missing_filter(name), line, false});
    filter->text = std::move(name);
    node = std::move(filter);
  }
  return node;
}

Parser::Parsed Parser::test(ExpressionPtr node) {
  const int line = take().line;
  const bool negated = skip_word("not");
  TARE_ASSIGN(std::string name, expect_name());
  while (skip_operator(".")) {
    TARE_ASSIGN(const std::string part, expect_name());
    name += "." + part;
  }
  ExpressionPtr test = make(ExpressionKind::kTest, line);
  TARE_TRY(adopt(*test, std::move(node)));
  const TokenKind next = now().kind;
  if (is_operator("(")) {
    int depth = 0;
    TARE_ASSIGN(test->call, call_arguments(depth));
    test->depth = std::max(test->depth, depth + 1);
  } else {
    test->call = std::make_unique<CallSignature>();
    if ((next == TokenKind::kName && !is_word("else") && !is_word("or") && !is_word("and")) ||
        next == TokenKind::kString || next == TokenKind::kInteger || next == TokenKind::kFloat || is_operator("[") ||
        is_operator("{")) {
      if (is_word("is")) return error("tests with 'is' cannot be chained");
      TARE_ASSIGN(ExpressionPtr argument, primary(false));
      TARE_ASSIGN(argument, postfix(std::move(argument)));
      test->depth = std::max(test->depth, argument->depth + 1);
      test->call->positional.push_back(std::move(argument));
    }
  }
  test->native = find_test(name);
  if (!test->native) unknown_.push_back({fmt::format("no test named '{}'", name), line, false});
  test->text = std::move(name);
  if (negated) return unary_node(ExpressionKind::kNot, line, std::move(test));
  return test;
}

Parser::Parsed Parser::subscript(ExpressionPtr node) {
  const Token token = take();
  if (token.text == ".") {
    const Token name = take();
    if (name.kind == TokenKind::kName) {
      TARE_ASSIGN(node, unary_node(ExpressionKind::kAttribute, token.line, std::move(node)));
      node->text = name.text;
      return node;
    }
    if (name.kind != TokenKind::kInteger) return error("expected a name or number after '.'", name.line);
    TARE_ASSIGN(ExpressionPtr index, integer_literal(name));
    return binary_node(ExpressionKind::kItem, token.line, std::move(node), std::move(index));
  }
  std::vector<ExpressionPtr> arguments;
  while (!is_operator("]")) {
    if (!arguments.empty()) TARE_TRY(expect_operator(","));
    TARE_ASSIGN(ExpressionPtr argument, subscripted());
    arguments.push_back(std::move(argument));
  }
  TARE_TRY(expect_operator("]"));
  if (arguments.size() == 1 && arguments[0]->kind == ExpressionKind::kSlice) {
    ExpressionPtr slice = make(ExpressionKind::kSlice, token.line);
    TARE_TRY(adopt(*slice, std::move(node)));
    for (ExpressionPtr& bound : arguments[0]->children) TARE_TRY(adopt(*slice, std::move(bound)));
    return slice;
  }
  ExpressionPtr index;
  if (arguments.size() == 1) {
    index = std::move(arguments[0]);
  } else {
    index = make(ExpressionKind::kTuple, token.line);
    for (ExpressionPtr& argument : arguments) {
      if (argument->kind == ExpressionKind::kSlice) return error("slices within a tuple of indices are not supported");
      TARE_TRY(adopt(*index, std::move(argument)));
    }
  }
  return binary_node(ExpressionKind::kItem, token.line, std::move(node), std::move(index));
}

// One index, or a slice whose children are its three bounds.
Parser::Parsed Parser::subscripted() {
  const int line = now().line;
  ExpressionPtr first;
  if (!is_operator(":")) {
    TARE_ASSIGN(first, expression());
    if (!is_operator(":")) return first;
  }
  take();
  ExpressionPtr slice = make(ExpressionKind::kSlice, line);
  TARE_TRY(adopt(*slice, std::move(first)));
  ExpressionPtr second, third;
  if (!is_operator(":") && !is_operator("]") && !is_operator(",")) {
    TARE_ASSIGN(second, expression());
  }
  if (skip_operator(":") && !is_operator("]") && !is_operator(",")) {
    TARE_ASSIGN(third, expression());
  }
  TARE_TRY(adopt(*slice, std::move(second)));
  TARE_TRY(adopt(*slice, std::move(third)));
  return slice;
}

Parser::Parsed Parser::call(ExpressionPtr callee) {
  ExpressionPtr node = make(ExpressionKind::kCall, now().line);
  TARE_TRY(adopt(*node, std::move(callee)));
  int depth = 0;
  TARE_ASSIGN(node->call, call_arguments(depth));
  node->depth = std::max(node->depth, depth + 1);
  return node;
}

Out<std::unique_ptr<CallSignature>> Parser::call_arguments(int& depth) {
  const Level level(nesting_);
  TARE_TRY(check_nesting());
  TARE_TRY(expect_operator("("));
  auto call = std::make_unique<CallSignature>();
  bool first = true;
  while (!is_operator(")")) {
    if (!first) {
      TARE_TRY(expect_operator(","));
      if (is_operator(")")) break;
    }
    first = false;
    ExpressionPtr* place = nullptr;
    if (skip_operator("*")) {
      if (call->spread || call->spread_named) return error("invalid arguments of a call");
      place = &call->spread;
    } else if (skip_operator("**")) {
      if (call->spread_named) return error("invalid arguments of a call");
      place = &call->spread_named;
    } else if (now().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
      if (call->spread_named) return error("invalid arguments of a call");
      const std::string name = take().text;
      take();
      for (const auto& [other, unused] : call->named) {
        if (other == name) return error(fmt::format("argument '{}' given twice", name));
      }
      place = &call->named.emplace_back(name, nullptr).second;
    } else {
      if (call->spread || call->spread_named || !call->named.empty()) return error("invalid arguments of a call");
      place = &call->positional.emplace_back();
    }
    TARE_ASSIGN(*place, expression());
    depth = std::max(depth, (*place)->depth);
  }
  TARE_TRY(expect_operator(")"));
  if (depth >= limits_.max_tree_depth) return limit_fault("expression nested too deep");
  return call;
}

}  // namespace tare::text::jinja
