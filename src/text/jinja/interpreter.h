#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/objects.h"
#include "text/jinja/runtime.h"

namespace tare::text::jinja {

/// Names of one body (a loop round, a macro call, a block). Macros keep a pointer to the scope they were defined in.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<NameId, Value>> values;
  bool captured = false;  // a macro points here: stays until the render ends
};

/// Runs one parsed template once. Expressions in evaluate.cpp, statements in interpreter.cpp.
class Interpreter {
 public:
  Interpreter(const Template& source, Runtime& runtime) : template_(source), runtime_(runtime) {
    context_.resize(source.names.size());
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// A variable of the context; ignored when the template never names it.
  void set_variable(std::string_view name, const Value& value);
  Out<std::string> run();

  /// Calls a macro defined in `scope`.
  Out<Value> call_macro(const MacroDefinition& macro, Scope* scope, CallArguments& arguments);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements.
  Out<Flow> execute(const Body& body, Scope* scope);
  Out<Flow> execute(const Statement& statement, Scope* scope);
  Out<Flow> execute_if(const Statement& statement, Scope* scope);
  Out<Flow> execute_for(const Statement& statement, Scope* scope, const Value& iterable, int depth0);
  Out<Flow> execute_scoped(const Body& body, Scope* scope);
  Out<Flow> execute_set_block(const Statement& statement, Scope* scope);
  Out<Flow> execute_filter_block(const Statement& statement, Scope* scope);
  Out<void> execute_call_block(const Statement& statement, Scope* scope);
  Out<Flow> execute_with(const Statement& statement, Scope* scope);
  Out<std::pair<Flow, std::string>> captured(const Body& body, Scope* scope);
  Out<void> assign(const Target& target, Value value, Scope* scope);
  Out<void> emit(std::string_view text);
  Value make_macro(const MacroDefinition& macro, Scope* scope);

  Out<void> enter();
  void leave() { --depth_; }

  // Expressions.
  Out<Value> evaluate(const Expression& node, Scope* scope);
  Out<Value> evaluate_node(const Expression& node, Scope* scope);
  Out<Value> evaluate_call(const Expression& node, Scope* scope, const Value* caller);
  Out<Value> evaluate_attribute(const Expression& node, Scope* scope);
  Out<Value> evaluate_item(const Expression& node, Scope* scope);
  Out<Value> evaluate_unary(const Expression& node, Scope* scope);
  Out<Value> evaluate_binary(const Expression& node, Scope* scope);
  Out<Value> evaluate_logic(const Expression& node, Scope* scope);
  Out<Value> evaluate_condition(const Expression& node, Scope* scope);
  Out<Value> evaluate_slice(const Expression& node, Scope* scope);
  Out<Value> evaluate_list(const Expression& node, Scope* scope);
  Out<Value> evaluate_dict(const Expression& node, Scope* scope);
  Out<Value> evaluate_comparison(const Expression& node, Scope* scope);
  Out<Value> evaluate_filter(const Expression& node, Scope* scope);
  Out<Value> evaluate_test(const Expression& node, Scope* scope);
  Out<Value> evaluate_concat(const Expression& node, Scope* scope);
  Out<void> evaluate_arguments(const CallSignature& call, Scope* scope, CallArguments& arguments);
  Value look_up(NameId name, const Scope* scope) const;

  // Scopes.
  Scope* open(Scope* parent);
  void close(Scope* scope);
  static void set(Scope* scope, NameId name, Value value);

  const Template& template_;
  Runtime& runtime_;
  std::vector<std::optional<Value>> context_;  // by NameId
  std::deque<Scope> scopes_;
  std::string output_;
  std::string* out_ = &output_;
  const Value* filter_input_ = nullptr;  // what the filters of a block start from
  int depth_ = 0;
  const char* stack_start_ = nullptr;
};

/// A macro, or the body of a call block.
class Macro : public Object {
 public:
  Macro(Interpreter* interpreter, const MacroDefinition* definition, Scope* scope)
      : interpreter_(interpreter), definition_(definition), scope_(scope) {}
  std::string_view type_name() const override { return "Macro"; }
  Out<std::string> print(Runtime& runtime, int depth) const override;
  Out<std::unique_ptr<Value>> attribute(Runtime& runtime, std::string_view name) override;
  bool callable() const override { return true; }
  Out<Value> call(Runtime& runtime, CallArguments& arguments) override;

 private:
  Interpreter* interpreter_;
  const MacroDefinition* definition_;
  Scope* scope_;
};

}  // namespace tare::text::jinja
