#include <fmt/format.h>

#include "base/result.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/natives.h"

namespace tare::text::jinja {

Value Interpreter::look_up(NameId name, const Scope* scope) const {
  for (; scope; scope = scope->parent) {
    for (const auto& [known, value] : scope->values) {
      if (known == name) return value;
    }
  }
  if (const auto& value = context_[static_cast<size_t>(name)]) return *value;
  return Value::undefined(fmt::format("'{}' is undefined", template_.names[static_cast<size_t>(name)]));
}

Out<void> Interpreter::enter() {
  const auto* here = static_cast<const char*>(__builtin_frame_address(0));
  if (!stack_start_) stack_start_ = here;
  const size_t used = static_cast<size_t>(here < stack_start_ ? stack_start_ - here : here - stack_start_);
  if (depth_ >= runtime_.limits().max_evaluation_depth || used > runtime_.limits().max_stack_bytes) {
    return limit_fault(fmt::format("evaluation too deep: {} levels, {} bytes of stack", depth_, used));
  }
  ++depth_;
  return {};
}

Out<Value> Interpreter::evaluate(const Expression& node, Scope* scope) {
  if (node.kind == ExpressionKind::kConstant) return node.value;
  TARE_TRY(runtime_.charge(1));
  TARE_TRY(enter());
  Out<Value> value = evaluate_node(node, scope);
  leave();
  if (!value.ok() && value.error()->line == 0) value.error()->line = node.line;
  return value;
}

// Only calls here: what has local values is a function of its own, so that a level of recursion takes little stack.
Out<Value> Interpreter::evaluate_node(const Expression& node, Scope* scope) {
  switch (node.kind) {
    case ExpressionKind::kConstant:
      return node.value;
    case ExpressionKind::kName:
      return look_up(node.name, scope);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_list(node, scope);
    case ExpressionKind::kDict:
      return evaluate_dict(node, scope);
    case ExpressionKind::kAttribute:
      return evaluate_attribute(node, scope);
    case ExpressionKind::kItem:
      return evaluate_item(node, scope);
    case ExpressionKind::kSlice:
      return evaluate_slice(node, scope);
    case ExpressionKind::kCall:
      return evaluate_call(node, scope, nullptr);
    case ExpressionKind::kFilter:
      return evaluate_filter(node, scope);
    case ExpressionKind::kTest:
      return evaluate_test(node, scope);
    case ExpressionKind::kNot:
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive:
      return evaluate_unary(node, scope);
    case ExpressionKind::kBinary:
      return evaluate_binary(node, scope);
    case ExpressionKind::kConcat:
      return evaluate_concat(node, scope);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
      return evaluate_logic(node, scope);
    case ExpressionKind::kComparison:
      return evaluate_comparison(node, scope);
    case ExpressionKind::kCondition:
      return evaluate_condition(node, scope);
  }
  return Value();
}

Out<Value> Interpreter::evaluate_attribute(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value of, evaluate(*node.children[0], scope));
  return runtime_.attribute(of, node.text);
}

Out<Value> Interpreter::evaluate_item(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value of, evaluate(*node.children[0], scope));
  TARE_ASSIGN(const Value key, evaluate(*node.children[1], scope));
  return runtime_.item(of, key);
}

Out<Value> Interpreter::evaluate_unary(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value value, evaluate(*node.children[0], scope));
  if (node.kind == ExpressionKind::kNot) return Value::boolean(!Runtime::truth(value));
  return runtime_.negate(value, node.kind == ExpressionKind::kNegative);
}

Out<Value> Interpreter::evaluate_binary(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value left, evaluate(*node.children[0], scope));
  TARE_ASSIGN(const Value right, evaluate(*node.children[1], scope));
  return runtime_.binary(node.operation, left, right);
}

Out<Value> Interpreter::evaluate_logic(const Expression& node, Scope* scope) {
  TARE_ASSIGN(Value left, evaluate(*node.children[0], scope));
  if (Runtime::truth(left) == (node.kind == ExpressionKind::kOr)) return left;
  return evaluate(*node.children[1], scope);
}

Out<Value> Interpreter::evaluate_condition(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value condition, evaluate(*node.children[1], scope));
  if (Runtime::truth(condition)) return evaluate(*node.children[0], scope);
  if (node.children[2]) return evaluate(*node.children[2], scope);
  return Value::undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", node.line));
}

Out<Value> Interpreter::evaluate_list(const Expression& node, Scope* scope) {
  std::vector<Value> items;
  items.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) {
    TARE_ASSIGN(Value item, evaluate(*child, scope));
    items.push_back(std::move(item));
  }
  return runtime_.sequence(std::move(items),
                           node.kind == ExpressionKind::kTuple ? SequenceForm::kTuple : SequenceForm::kList);
}

Out<Value> Interpreter::evaluate_dict(const Expression& node, Scope* scope) {
  Dict dict;
  for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
    TARE_ASSIGN(Value key, evaluate(*node.children[i], scope));
    TARE_ASSIGN(Value value, evaluate(*node.children[i + 1], scope));
    TARE_TRY(runtime_.set_entry(dict, std::move(key), std::move(value)));
  }
  return runtime_.dict(std::move(dict));
}

Out<Value> Interpreter::evaluate_slice(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value of, evaluate(*node.children[0], scope));
  Value bounds[3] = {None{}, None{}, None{}};
  for (size_t i = 0; i < 3; ++i) {
    if (!node.children[i + 1]) continue;
    TARE_ASSIGN(bounds[i], evaluate(*node.children[i + 1], scope));
  }
  return runtime_.slice(of, bounds[0], bounds[1], bounds[2]);
}

Out<Value> Interpreter::evaluate_concat(const Expression& node, Scope* scope) {
  std::string joined;
  for (const ExpressionPtr& child : node.children) {
    TARE_ASSIGN(const Value value, evaluate(*child, scope));
    TARE_ASSIGN(const std::string text, runtime_.print(value));
    joined += text;
    TARE_TRY(runtime_.check_size(joined.size()));
  }
  return runtime_.text(std::move(joined));
}

Out<Value> Interpreter::evaluate_comparison(const Expression& node, Scope* scope) {
  TARE_ASSIGN(Value left, evaluate(*node.children[0], scope));
  for (size_t i = 0; i < node.comparisons.size(); ++i) {
    TARE_ASSIGN(Value right, evaluate(*node.children[i + 1], scope));
    TARE_ASSIGN(const bool holds, runtime_.compare(node.comparisons[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Out<void> Interpreter::evaluate_arguments(const CallSignature& call, Scope* scope, CallArguments& arguments) {
  for (const ExpressionPtr& expression : call.positional) {
    TARE_ASSIGN(Value value, evaluate(*expression, scope));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, expression] : call.named) {
    TARE_ASSIGN(Value value, evaluate(*expression, scope));
    arguments.named.emplace_back(name, std::move(value));
  }
  if (call.spread) {
    TARE_ASSIGN(const Value value, evaluate(*call.spread, scope));
    TARE_ASSIGN(std::vector<Value> items, runtime_.iterate(value));
    for (Value& item : items) arguments.positional.push_back(std::move(item));
  }
  if (call.spread_named) {
    TARE_ASSIGN(const Value value, evaluate(*call.spread_named, scope));
    if (!value.is_dict())
      return type_fault(fmt::format("argument after ** must be a mapping, not {}", value.type_name()));
    for (const auto& [key, item] : value.dict().entries()) {
      if (!key.is_string()) return type_fault("keywords must be strings");
      for (const auto& [known, unused] : arguments.named) {
        if (known == key.bytes())
          return type_fault(fmt::format("got multiple values for keyword argument '{}'", known));
      }
      arguments.named.emplace_back(key.bytes(), item);
    }
  }
  return {};
}

Out<Value> Interpreter::evaluate_call(const Expression& node, Scope* scope, const Value* caller) {
  TARE_ASSIGN(const Value callee, evaluate(*node.children[0], scope));
  CallArguments arguments;
  TARE_TRY(evaluate_arguments(*node.call, scope, arguments));
  if (caller) arguments.named.emplace_back("caller", *caller);
  return runtime_.call(callee, arguments);
}

Out<Value> Interpreter::evaluate_filter(const Expression& node, Scope* scope) {
  Value input;
  if (node.children[0]) {
    TARE_ASSIGN(input, evaluate(*node.children[0], scope));
  } else if (filter_input_) {
    input = *filter_input_;
  }
  if (!node.native) return type_fault(missing_filter(node.text));
  CallArguments arguments;
  TARE_TRY(evaluate_arguments(*node.call, scope, arguments));
  return node.native(runtime_, input, arguments);
}

Out<Value> Interpreter::evaluate_test(const Expression& node, Scope* scope) {
  TARE_ASSIGN(const Value value, evaluate(*node.children[0], scope));
  if (!node.native) return type_fault(fmt::format("no test named '{}'", node.text));
  CallArguments arguments;
  TARE_TRY(evaluate_arguments(*node.call, scope, arguments));
  return node.native(runtime_, value, arguments);
}

}  // namespace tare::text::jinja
