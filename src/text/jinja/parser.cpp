#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/jinja/natives.h"
#include "text/jinja/parser_state.h"

namespace tare::text::jinja {

namespace {

using StatementPtr = std::unique_ptr<Statement>;

StatementPtr make_statement(StatementKind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kString:
      return fmt::format("string '{}'", token.text.substr(0, 40));
    default:
      return fmt::format("'{}'", token.text.substr(0, 40));
  }
}

}  // namespace

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  take();
  return true;
}
bool Parser::skip_word(std::string_view text) {
  if (!is_word(text)) return false;
  take();
  return true;
}
Out<void> Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) return unexpected(fmt::format("'{}'", text));
  return {};
}
Out<void> Parser::expect_word(std::string_view text) {
  if (!skip_word(text)) return unexpected(fmt::format("'{}'", text));
  return {};
}
Out<void> Parser::expect(TokenKind kind, std::string_view what) {
  if (now().kind != kind) return unexpected(what);
  take();
  return {};
}
Out<std::string> Parser::expect_name() {
  if (now().kind != TokenKind::kName) return unexpected("a name");
  return take().text;
}
FaultPtr Parser::error(std::string message, int line) const {
  return fault(FaultKind::kSyntax, std::move(message), line ? line : now().line);
}
FaultPtr Parser::unexpected(std::string_view expected) const {
  return error(fmt::format("expected {}, found {}", expected, describe(now())));
}
Out<void> Parser::check_nesting() const {
  if (nesting_ <= limits_.max_nesting) return {};
  return fault(FaultKind::kLimit, fmt::format("template nested deeper than {} levels", limits_.max_nesting),
               now().line);
}

NameId Parser::intern(std::string_view name) {
  const auto [place, added] = ids_.try_emplace(std::string(name), static_cast<NameId>(names_.size()));
  if (added) names_.emplace_back(name);
  return place->second;
}

bool Parser::loads_first(NameId name, size_t since) const {
  for (size_t i = since; i < mentions_.size(); ++i) {
    if (mentions_[i].name == name) return !mentions_[i].store;
  }
  return false;
}

void Parser::forgive_unknown(size_t since) {
  unknown_.erase(std::remove_if(unknown_.begin() + static_cast<std::ptrdiff_t>(since), unknown_.end(),
                                [](const Unknown& unknown) { return !unknown.certain; }),
                 unknown_.end());
}
void Parser::confirm_unknown(size_t since) {
  for (size_t i = since; i < unknown_.size(); ++i) unknown_[i].certain = true;
}

Out<std::unique_ptr<const Template>> Parser::run() {
  auto parsed = std::make_unique<Template>();
  parsed->loop_id = intern("loop");
  TARE_ASSIGN(parsed->body, body({}));
  if (now().kind != TokenKind::kEnd) return unexpected("end of template");
  if (!unknown_.empty()) return error(unknown_.front().what, unknown_.front().line);
  parsed->names = std::move(names_);
  return std::unique_ptr<const Template>(std::move(parsed));
}

// Statements up to a tag that begins with one of `ends`, or to the end of the template when there are none.
Out<Body> Parser::body(const Words& ends) {
  const Level level(nesting_);
  TARE_TRY(check_nesting());
  if (!ends.empty()) {
    skip_operator(":");
    TARE_TRY(expect(TokenKind::kBlockEnd, "'%}'"));
  }
  Body statements;
  for (;;) {
    const int line = now().line;
    switch (now().kind) {
      case TokenKind::kData: {
        StatementPtr text = make_statement(StatementKind::kText, line);
        text->text = take().text;
        statements.push_back(std::move(text));
        break;
      }
      case TokenKind::kVariableBegin: {
        take();
        StatementPtr output = make_statement(StatementKind::kOutput, line);
        TARE_ASSIGN(output->expression, tuple({}));
        TARE_TRY(expect(TokenKind::kVariableEnd, "'}}'"));
        statements.push_back(std::move(output));
        break;
      }
      case TokenKind::kBlockBegin: {
        take();
        if (now().kind == TokenKind::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end()) {
          return statements;
        }
        TARE_ASSIGN(StatementPtr made, statement());
        if (made) statements.push_back(std::move(made));
        TARE_TRY(expect(TokenKind::kBlockEnd, "'%}'"));
        break;
      }
      default:
        if (!ends.empty()) return unexpected(fmt::format("'{}'", ends.back()));
        return statements;
    }
  }
}

Out<Body> Parser::body_to(std::string_view end) {
  TARE_ASSIGN(Body statements, body({end}));
  take();
  return statements;
}

Out<StatementPtr> Parser::statement() {
  const int line = now().line;
  TARE_ASSIGN(const std::string word, expect_name());
  if (word == "if") return if_tag(line);
  if (word == "for") return for_tag(line);
  if (word == "set") return set_tag(line);
  if (word == "macro") return macro_tag(line);
  if (word == "call") return call_tag(line);
  if (word == "filter") return filter_tag(line);
  if (word == "with") return with_tag(line);
  if (word == "generation" || word == "block" || word == "autoescape") return scope_tag(line, word);
  if (word == "break" || word == "continue") {
    if (loops_ == 0) return error(fmt::format("'{}' outside a loop", word), line);
    return make_statement(word == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
  }
  if (word == "print") {
    StatementPtr output = make_statement(StatementKind::kOutput, line);
    output->expression = make(ExpressionKind::kConcat, line);  // each printed, one behind the other
    do {
      TARE_ASSIGN(ExpressionPtr value, expression());
      TARE_TRY(adopt(*output->expression, std::move(value)));
    } while (skip_operator(","));
    return output;
  }
  if (word == "include" || word == "import" || word == "from" || word == "extends") {
    return error(fmt::format("tag '{}' needs other templates, which a chat template does not have", word), line);
  }
  return error(fmt::format("unknown tag '{}'", word.substr(0, 40)), line);
}

Out<StatementPtr> Parser::if_tag(int line) {
  const size_t unknown = unknown_.size();
  StatementPtr node = make_statement(StatementKind::kIf, line);
  for (;;) {
    Branch branch;
    TARE_ASSIGN(branch.condition, tuple({.condition = false}));
    TARE_ASSIGN(branch.body, body({"elif", "else", "endif"}));
    node->branches.push_back(std::move(branch));
    if (skip_word("elif")) continue;
    if (skip_word("else")) {
      Branch last;
      TARE_ASSIGN(last.body, body_to("endif"));
      node->branches.push_back(std::move(last));
    } else {
      take();
    }
    forgive_unknown(unknown);
    return node;
  }
}

Out<StatementPtr> Parser::for_tag(int line) {
  StatementPtr node = make_statement(StatementKind::kFor, line);
  const NameId loop = intern("loop");
  const size_t start = mentions_.size();
  TARE_ASSIGN(node->target, target(false, "in"));
  TARE_TRY(expect_word("in"));
  TARE_ASSIGN(node->expression, tuple({.condition = false, .end_word = "recursive"}));
  const size_t unknown = unknown_.size();
  if (skip_word("if")) {
    TARE_ASSIGN(node->condition, expression());
  }
  node->recursive = skip_word("recursive");
  const size_t since = mentions_.size();
  ++loops_;
  TARE_ASSIGN(node->body, body({"endfor", "else"}));
  --loops_;
  for (size_t i = start; i < mentions_.size(); ++i) {
    if (mentions_[i].store && mentions_[i].name == loop) return error("cannot assign to 'loop' within a loop", line);
  }
  node->uses_loop = node->recursive || loads_first(loop, since);
  if (skip_word("else")) {
    TARE_ASSIGN(node->alternative, body_to("endfor"));
  } else {
    take();
  }
  confirm_unknown(unknown);
  return node;
}

Out<StatementPtr> Parser::set_tag(int line) {
  StatementPtr node = make_statement(StatementKind::kSet, line);
  TARE_ASSIGN(node->target, target(true, ""));
  if (skip_operator("=")) {
    TARE_ASSIGN(node->expression, tuple({}));
    return node;
  }
  node->kind = StatementKind::kSetBlock;
  const size_t unknown = unknown_.size();
  TARE_ASSIGN(node->expression, filter(nullptr, false));
  TARE_ASSIGN(node->body, body_to("endset"));
  confirm_unknown(unknown);
  return node;
}

Out<void> Parser::signature(MacroDefinition& macro) {
  TARE_TRY(expect_operator("("));
  while (!is_operator(")")) {
    if (!macro.parameters.empty()) TARE_TRY(expect_operator(","));
    TARE_ASSIGN(const std::string name, expect_name());
    for (const std::string& other : macro.parameter_names) {
      if (other == name) return error(fmt::format("parameter '{}' twice", name));
    }
    macro.parameters.push_back(intern(name));
    macro.parameter_names.push_back(name);
    note(macro.parameters.back(), true);
    macro.explicit_caller |= name == "caller";
    if (skip_operator("=")) {
      TARE_ASSIGN(ExpressionPtr value, expression());
      macro.defaults.push_back(std::move(value));
    } else if (!macro.defaults.empty()) {
      return error("parameter without default after one with default");
    }
  }
  return expect_operator(")");
}

Out<void> Parser::macro_body(MacroDefinition& macro, std::string_view end) {
  const int loops = loops_;
  loops_ = 0;  // a macro cannot break the loop around it
  const size_t since = mentions_.size();
  TARE_ASSIGN(macro.body, body_to(end));
  loops_ = loops;
  macro.caller_id = intern("caller");
  macro.kwargs_id = intern("kwargs");
  macro.varargs_id = intern("varargs");
  const auto declared = [&](NameId id) {
    return std::find(macro.parameters.begin(), macro.parameters.end(), id) != macro.parameters.end();
  };
  macro.uses_caller = loads_first(macro.caller_id, since);
  macro.uses_kwargs = loads_first(macro.kwargs_id, since) && !declared(macro.kwargs_id);
  macro.uses_varargs = loads_first(macro.varargs_id, since) && !declared(macro.varargs_id);
  return {};
}

Out<StatementPtr> Parser::macro_tag(int line) {
  StatementPtr node = make_statement(StatementKind::kMacro, line);
  node->macro = std::make_unique<MacroDefinition>();
  TARE_ASSIGN(node->macro->name, expect_name());
  node->macro->name_id = intern(node->macro->name);
  const size_t unknown = unknown_.size();
  TARE_TRY(signature(*node->macro));
  TARE_TRY(macro_body(*node->macro, "endmacro"));
  confirm_unknown(unknown);
  return node;
}

Out<StatementPtr> Parser::call_tag(int line) {
  StatementPtr node = make_statement(StatementKind::kCallBlock, line);
  node->macro = std::make_unique<MacroDefinition>();
  node->macro->name = "caller";
  if (is_operator("(")) TARE_TRY(signature(*node->macro));
  TARE_ASSIGN(node->expression, expression());
  if (node->expression->kind != ExpressionKind::kCall) return error("expected a call", line);
  const size_t unknown = unknown_.size();
  TARE_TRY(macro_body(*node->macro, "endcall"));
  confirm_unknown(unknown);
  return node;
}

Out<StatementPtr> Parser::filter_tag(int line) {
  StatementPtr node = make_statement(StatementKind::kFilterBlock, line);
  const size_t unknown = unknown_.size();
  TARE_ASSIGN(node->expression, filter(nullptr, true));
  TARE_ASSIGN(node->body, body_to("endfilter"));
  confirm_unknown(unknown);
  return node;
}

Out<StatementPtr> Parser::with_tag(int line) {
  StatementPtr node = make_statement(StatementKind::kWith, line);
  const size_t unknown = unknown_.size();
  while (now().kind != TokenKind::kBlockEnd) {
    if (!node->assignments.empty()) TARE_TRY(expect_operator(","));
    TARE_ASSIGN(Target place, target(false, ""));
    TARE_TRY(expect_operator("="));
    TARE_ASSIGN(ExpressionPtr value, expression());
    node->assignments.emplace_back(std::move(place), std::move(value));
  }
  TARE_ASSIGN(node->body, body_to("endwith"));
  confirm_unknown(unknown);
  return node;
}

Out<StatementPtr> Parser::scope_tag(int line, std::string_view word) {
  StatementPtr node = make_statement(StatementKind::kScope, line);
  if (word == "autoescape") {
    TARE_ASSIGN(const ExpressionPtr on, expression());
    if (on->kind != ExpressionKind::kConstant || !on->value.is_bool() || on->value.as_bool()) {
      return error("autoescape is supported only as 'autoescape false'", line);
    }
  }
  if (word == "block") {
    TARE_TRY(expect_name());
    skip_word("scoped");
    skip_word("required");
  }
  const size_t unknown = unknown_.size();
  const int loops = loops_;
  loops_ = 0;
  TARE_ASSIGN(node->body, body_to("end" + std::string(word)));
  loops_ = loops;
  if (word == "block" && now().kind == TokenKind::kName) take();
  confirm_unknown(unknown);
  return node;
}

Out<Target> Parser::target(bool attributes, std::string_view end_word) {
  const int line = now().line;
  const size_t since = mentions_.size();
  TARE_ASSIGN(const ExpressionPtr node,
              tuple({.simplified = true, .condition = false, .attributes = attributes, .end_word = end_word}));
  Out<Target> made = to_target(*node);
  if (!made.ok()) return error("cannot assign to this", line);
  for (size_t i = since; i < mentions_.size(); ++i) mentions_[i].store = true;
  if (attributes && node->kind == ExpressionKind::kAttribute) mentions_.resize(since), note(made->name, false);
  return made;
}

Out<Target> Parser::to_target(const Expression& node) {
  Target target;
  if (node.kind == ExpressionKind::kName) {
    target.name = node.name;
    return target;
  }
  if (node.kind == ExpressionKind::kAttribute && node.children[0]->kind == ExpressionKind::kName) {
    target.name = node.children[0]->name;
    target.attribute = node.text;
    return target;
  }
  if (node.kind != ExpressionKind::kTuple) return error("cannot assign to this");
  target.is_tuple = true;
  for (const ExpressionPtr& child : node.children) {
    TARE_ASSIGN(Target part, to_target(*child));
    target.parts.push_back(std::move(part));
  }
  return target;
}

Out<std::unique_ptr<const Template>> parse_template(std::string_view source, const ParseLimits& limits) {
  if (source.size() > limits.max_bytes) {
    return limit_fault(fmt::format("template of {} bytes; at most {} are read", source.size(), limits.max_bytes));
  }
  TARE_ASSIGN(std::vector<Token> tokens, tokenize(source, limits.max_tokens));
  return Parser(std::move(tokens), limits).run();
}

}  // namespace tare::text::jinja
