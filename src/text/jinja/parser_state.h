#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace tare::text::jinja {

/// The recursive-descent parser; literals in parser_primary.cpp, operators and calls in parser_expression.cpp,
/// tags in parser.cpp.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const ParseLimits& limits) : tokens_(std::move(tokens)), limits_(limits) {}

  Out<std::unique_ptr<const Template>> run();

 private:
  using Words = std::vector<std::string_view>;
  using Parsed = Out<ExpressionPtr>;

  // Tokens.
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is_operator(std::string_view text) const { return now().kind == TokenKind::kOperator && now().text == text; }
  bool is_word(std::string_view text) const { return now().kind == TokenKind::kName && now().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_word(std::string_view text);
  Out<void> expect_operator(std::string_view text);
  Out<void> expect_word(std::string_view text);
  Out<void> expect(TokenKind kind, std::string_view what);
  Out<std::string> expect_name();
  FaultPtr error(std::string message, int line = 0) const;
  FaultPtr unexpected(std::string_view expected) const;

  // Names and what bodies refer to.
  NameId intern(std::string_view name);
  void note(NameId name, bool store) { mentions_.push_back({name, store}); }
  bool loads_first(NameId name, size_t since) const;

  // Filters and tests that do not exist: forgiven in branches of the same scope, reported at the end.
  struct Unknown {
    std::string what;
    int line = 0;
    bool certain = false;
  };
  void forgive_unknown(size_t since);
  void confirm_unknown(size_t since);

  // Expressions.
  struct TupleRules {
    bool simplified = false;    // names and literals only: an assignment target
    bool condition = true;      // x if y allowed
    bool parentheses = false;   // () is a tuple
    bool attributes = false;    // ns.a allowed in a target
    std::string_view end_word;  // also ends the tuple
  };
  Parsed tuple(const TupleRules& rules);
  Parsed expression(bool with_condition = true);
  Parsed condition();
  Parsed disjunction();
  Parsed conjunction();
  Parsed negation();
  Parsed comparison();
  Parsed sum();
  Parsed concat();
  Parsed product();
  Parsed power();
  Parsed unary(bool with_filter);
  Parsed primary(bool attributes);
  Parsed postfix(ExpressionPtr node);
  Parsed filters_and_tests(ExpressionPtr node);
  Parsed filter(ExpressionPtr node, bool inline_start);
  Parsed test(ExpressionPtr node);
  Parsed subscript(ExpressionPtr node);
  Parsed subscripted();
  Parsed call(ExpressionPtr callee);
  Parsed list();
  Parsed dict();
  Out<std::unique_ptr<CallSignature>> call_arguments(int& depth);
  ExpressionPtr make(ExpressionKind kind, int line) const;
  /// Adds a child and keeps the depth; fails when the tree is too deep.
  Out<void> adopt(Expression& parent, ExpressionPtr child) const;
  Parsed unary_node(ExpressionKind kind, int line, ExpressionPtr child) const;
  Parsed binary_node(ExpressionKind kind, int line, ExpressionPtr left, ExpressionPtr right) const;
  Parsed integer_literal(const Token& token) const;

  // Statements.
  Out<Body> body(const Words& ends);        // leaves the ending word as the current token
  Out<Body> body_to(std::string_view end);  // takes the ending word and the end of its tag
  Out<std::unique_ptr<Statement>> statement();
  Out<std::unique_ptr<Statement>> if_tag(int line);
  Out<std::unique_ptr<Statement>> for_tag(int line);
  Out<std::unique_ptr<Statement>> set_tag(int line);
  Out<std::unique_ptr<Statement>> macro_tag(int line);
  Out<std::unique_ptr<Statement>> call_tag(int line);
  Out<std::unique_ptr<Statement>> filter_tag(int line);
  Out<std::unique_ptr<Statement>> with_tag(int line);
  Out<std::unique_ptr<Statement>> scope_tag(int line, std::string_view word);
  Out<void> signature(MacroDefinition& macro);
  Out<void> macro_body(MacroDefinition& macro, std::string_view end);
  Out<Target> target(bool attributes, std::string_view end_word);
  Out<Target> to_target(const Expression& node);

  /// One level of recursion, for the life of the object.
  class Level {
   public:
    explicit Level(int& depth) : depth_(depth) { ++depth_; }
    ~Level() { --depth_; }

   private:
    int& depth_;
  };
  Out<void> check_nesting() const;

  struct Mention {
    NameId name;
    bool store;
  };

  std::vector<Token> tokens_;
  ParseLimits limits_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // for tags around this place, in the same macro
  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId> ids_;
  std::vector<Mention> mentions_;
  std::vector<Unknown> unknown_;
};

}  // namespace tare::text::jinja
