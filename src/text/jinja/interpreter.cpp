#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "text/jinja/natives.h"

namespace tare::text::jinja {

Out<std::string> Macro::print(Runtime&, int) const {
  return fmt::format("<Macro {}>", repr_text(definition_->name));
}

Out<std::unique_ptr<Value>> Macro::attribute(Runtime& runtime, std::string_view name) {
  const auto own = [](Value value) { return std::make_unique<Value>(std::move(value)); };
  if (name == "name") return own(Value::string(definition_->name));
  if (name == "catch_kwargs") return own(Value::boolean(definition_->uses_kwargs));
  if (name == "catch_varargs") return own(Value::boolean(definition_->uses_varargs));
  if (name == "caller") return own(Value::boolean(definition_->uses_caller));
  if (name == "arguments") {
    std::vector<Value> names;
    for (const std::string& parameter : definition_->parameter_names) names.push_back(Value::string(parameter));
    TARE_ASSIGN(Value tuple, runtime.tuple(std::move(names)));
    return own(std::move(tuple));
  }
  return std::unique_ptr<Value>();
}

Out<Value> Macro::call(Runtime&, CallArguments& arguments) {
  return interpreter_->call_macro(*definition_, scope_, arguments);
}

void Interpreter::set_variable(std::string_view name, const Value& value) {
  const auto found = std::find(template_.names.begin(), template_.names.end(), name);
  if (found != template_.names.end()) context_[static_cast<size_t>(found - template_.names.begin())] = value;
}

Out<std::string> Interpreter::run() {
  for (size_t i = 0; i < context_.size(); ++i) {
    const std::string& name = template_.names[i];
    const Native global = context_[i] ? nullptr : find_global(name);
    if (global) context_[i] = Value::object(std::make_shared<NativeFunction>(global, Value(None{}), name));
  }
  Scope* root = open(nullptr);
  root->captured = true;
  TARE_TRY(execute(template_.body, root));
  return std::move(output_);
}

// A deque keeps addresses; the last scope is dropped when its body ends, unless a macro points to it.
Scope* Interpreter::open(Scope* parent) {
  scopes_.emplace_back();
  scopes_.back().parent = parent;
  return &scopes_.back();
}
void Interpreter::close(Scope* scope) {
  if (!scope->captured && &scopes_.back() == scope) scopes_.pop_back();
}

void Interpreter::set(Scope* scope, NameId name, Value value) {
  for (auto& [known, old] : scope->values) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scope->values.emplace_back(name, std::move(value));
}

Out<void> Interpreter::emit(std::string_view text) {
  if (out_->size() + text.size() > runtime_.limits().max_output_bytes) {
    return limit_fault(fmt::format("template makes more than {} bytes", runtime_.limits().max_output_bytes));
  }
  out_->append(text);
  return {};
}

Out<void> Interpreter::assign(const Target& target, Value value, Scope* scope) {
  if (target.is_tuple) {
    TARE_ASSIGN(const std::vector<Value> parts, runtime_.iterate(value));
    if (parts.size() != target.parts.size()) {
      return type_fault(fmt::format("cannot unpack {} values into {} names", parts.size(), target.parts.size()));
    }
    for (size_t i = 0; i < parts.size(); ++i) TARE_TRY(assign(target.parts[i], parts[i], scope));
    return {};
  }
  if (target.attribute.empty()) {
    set(scope, target.name, std::move(value));
    return {};
  }
  const Value holder = look_up(target.name, scope);
  auto* space = holder.object_as<Namespace>();
  if (!space) return type_fault("cannot assign attribute on non-namespace object");
  space->set(target.attribute, std::move(value));
  return {};
}

Out<Interpreter::Flow> Interpreter::execute(const Body& body, Scope* scope) {
  TARE_TRY(enter());
  struct Leave {
    Interpreter& interpreter;
    ~Leave() { interpreter.leave(); }
  } const at_end{*this};
  for (const auto& statement : body) {
    Out<Flow> flow = execute(*statement, scope);
    if (!flow.ok()) {
      if (flow.error()->line == 0) flow.error()->line = statement->line;
      return flow;
    }
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Out<Interpreter::Flow> Interpreter::execute(const Statement& statement, Scope* scope) {
  TARE_TRY(runtime_.charge(1));
  switch (statement.kind) {
    case StatementKind::kText:
      TARE_TRY(emit(statement.text));
      return Flow::kNext;
    case StatementKind::kOutput: {
      TARE_ASSIGN(const Value value, evaluate(*statement.expression, scope));
      if (value.is_string()) {
        TARE_TRY(emit(value.bytes()));
      } else {
        TARE_ASSIGN(const std::string text, runtime_.print(value));
        TARE_TRY(emit(text));
      }
      return Flow::kNext;
    }
    case StatementKind::kIf:
      return execute_if(statement, scope);
    case StatementKind::kFor: {
      TARE_ASSIGN(const Value iterable, evaluate(*statement.expression, scope));
      return execute_for(statement, scope, iterable, 0);
    }
    case StatementKind::kSet: {
      TARE_ASSIGN(Value value, evaluate(*statement.expression, scope));
      TARE_TRY(assign(statement.target, std::move(value), scope));
      return Flow::kNext;
    }
    case StatementKind::kSetBlock:
      return execute_set_block(statement, scope);
    case StatementKind::kMacro:
      set(scope, statement.macro->name_id, make_macro(*statement.macro, scope));
      return Flow::kNext;
    case StatementKind::kCallBlock:
      TARE_TRY(execute_call_block(statement, scope));
      return Flow::kNext;
    case StatementKind::kFilterBlock:
      return execute_filter_block(statement, scope);
    case StatementKind::kWith:
      return execute_with(statement, scope);
    case StatementKind::kScope:
      return execute_scoped(statement.body, scope);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Out<Interpreter::Flow> Interpreter::execute_if(const Statement& statement, Scope* scope) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition) {
      TARE_ASSIGN(const Value condition, evaluate(*branch.condition, scope));
      if (!Runtime::truth(condition)) continue;
    }
    return execute(branch.body, scope);
  }
  return Flow::kNext;
}

Out<Interpreter::Flow> Interpreter::execute_scoped(const Body& body, Scope* scope) {
  Scope* inner = open(scope);
  Out<Flow> flow = execute(body, inner);
  close(inner);
  return flow;
}

Out<Interpreter::Flow> Interpreter::execute_for(const Statement& statement, Scope* scope, const Value& iterable,
                                                int depth0) {
  TARE_ASSIGN(std::vector<Value> source, runtime_.iterate(iterable));
  size_t next = 0;
  const Loop::Pull pull = [&](std::vector<Value>& items) -> Out<bool> {
    while (next < source.size()) {
      Value candidate = source[next++];
      if (statement.condition) {
        Scope* trial = open(scope);
        TARE_TRY(assign(statement.target, candidate, trial));
        TARE_ASSIGN(const Value passes, evaluate(*statement.condition, trial));
        close(trial);
        if (!Runtime::truth(passes)) continue;
      }
      items.push_back(std::move(candidate));
      return true;
    }
    return false;
  };
  Loop::Recurse recurse;
  if (statement.recursive) {
    for (Scope* up = scope; up; up = up->parent) up->captured = true;
    recurse = [this, &statement, scope](const Value& inner, int depth) -> Out<Value> {
      TARE_TRY(runtime_.enter_call());
      std::string text;
      std::string* const outer = std::exchange(out_, &text);
      const Out<Flow> flow = execute_for(statement, scope, inner, depth);
      out_ = outer;
      runtime_.leave_call();
      if (!flow.ok()) return fault(flow.fault().kind, flow.fault().message, flow.fault().line);
      return runtime_.text(std::move(text));
    };
  }
  const auto loop = std::make_shared<Loop>(pull, std::move(recurse), depth0);
  runtime_.keep(std::shared_ptr<Object>(loop));
  bool ran = false;
  Flow flow = Flow::kNext;
  while (flow != Flow::kBreak) {
    TARE_TRY(runtime_.charge(1));
    Out<bool> more = loop->advance();
    if (!more.ok()) {
      loop->finish();
      return std::move(more).error();
    }
    if (!*more) break;
    ran = true;
    Scope* round = open(scope);
    if (statement.uses_loop) set(round, template_.loop_id, Value::object(loop));
    Out<void> assigned = assign(statement.target, loop->current(), round);
    Out<Flow> result = assigned.ok() ? execute(statement.body, round) : Out<Flow>(std::move(assigned).error());
    close(round);
    if (!result.ok()) {
      loop->finish();
      return result;
    }
    flow = *result;
  }
  loop->finish();
  runtime_.release(loop);
  if (!ran && !statement.alternative.empty()) return execute_scoped(statement.alternative, scope);
  return Flow::kNext;
}

Out<std::pair<Interpreter::Flow, std::string>> Interpreter::captured(const Body& body, Scope* scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Out<Flow> flow = execute_scoped(body, scope);
  out_ = outer;
  if (!flow.ok()) return std::move(flow).error();
  TARE_TRY(runtime_.charge_bytes(text.size()));
  return std::pair(*flow, std::move(text));
}

Out<Interpreter::Flow> Interpreter::execute_set_block(const Statement& statement, Scope* scope) {
  TARE_ASSIGN(auto done, captured(statement.body, scope));
  if (done.first != Flow::kNext) return done.first;
  Value value = Value::string(std::move(done.second));
  if (statement.expression) {
    const Value* const outer = std::exchange(filter_input_, &value);
    Out<Value> filtered = evaluate(*statement.expression, scope);
    filter_input_ = outer;
    if (!filtered.ok()) return std::move(filtered).error();
    value = *std::move(filtered);
  }
  TARE_TRY(assign(statement.target, std::move(value), scope));
  return Flow::kNext;
}

Out<Interpreter::Flow> Interpreter::execute_filter_block(const Statement& statement, Scope* scope) {
  TARE_ASSIGN(auto done, captured(statement.body, scope));
  if (done.first != Flow::kNext) return done.first;
  const Value text = Value::string(std::move(done.second));
  const Value* const outer = std::exchange(filter_input_, &text);
  Out<Value> filtered = evaluate(*statement.expression, scope);
  filter_input_ = outer;
  if (!filtered.ok()) return std::move(filtered).error();
  TARE_ASSIGN(const std::string shown, runtime_.print(*filtered));
  TARE_TRY(emit(shown));
  return Flow::kNext;
}

Out<void> Interpreter::execute_call_block(const Statement& statement, Scope* scope) {
  const Value caller = make_macro(*statement.macro, scope);
  TARE_ASSIGN(const Value result, evaluate_call(*statement.expression, scope, &caller));
  TARE_ASSIGN(const std::string shown, runtime_.print(result));
  return emit(shown);
}

Out<Interpreter::Flow> Interpreter::execute_with(const Statement& statement, Scope* scope) {
  Scope* inner = open(scope);
  for (const auto& [target, expression] : statement.assignments) {
    TARE_ASSIGN(Value value, evaluate(*expression, scope));
    TARE_TRY(assign(target, std::move(value), inner));
  }
  Out<Flow> flow = execute(statement.body, inner);
  close(inner);
  return flow;
}

Value Interpreter::make_macro(const MacroDefinition& macro, Scope* scope) {
  for (Scope* up = scope; up && !up->captured; up = up->parent) up->captured = true;
  return Value::object(std::make_shared<Macro>(this, &macro, scope));
}

Out<Value> Interpreter::call_macro(const MacroDefinition& macro, Scope* scope, CallArguments& arguments) {
  const size_t count = macro.parameters.size();
  std::vector<std::pair<std::string, Value>>& named = arguments.named;
  const auto pop = [&](std::string_view name) -> std::optional<Value> {
    for (auto place = named.begin(); place != named.end(); ++place) {
      if (place->first != name) continue;
      Value value = std::move(place->second);
      named.erase(place);
      return value;
    }
    return std::nullopt;
  };

  TARE_TRY(runtime_.enter_call());
  Scope* inner = open(scope);
  const auto leave = [&] {
    close(inner);
    runtime_.leave_call();
  };
  const auto failed = [&](FaultPtr reason) -> Out<Value> {
    leave();
    return reason;
  };

  bool found_caller = arguments.positional.size() >= count && macro.explicit_caller;
  std::vector<size_t> absent;
  for (size_t i = 0; i < count; ++i) {
    if (i < arguments.positional.size()) {
      set(inner, macro.parameters[i], arguments.positional[i]);
    } else {
      found_caller |= macro.parameter_names[i] == "caller";
      if (std::optional<Value> value = pop(macro.parameter_names[i])) {
        set(inner, macro.parameters[i], *std::move(value));
      } else {
        absent.push_back(i);
      }
    }
  }
  if (macro.uses_caller && !found_caller) {
    const std::optional<Value> caller = pop("caller");
    set(inner, macro.caller_id, caller && !caller->is_none() ? *caller : Value::undefined("No caller defined"));
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(Value::string(name), std::move(value));
    Out<Value> dict = runtime_.dict(std::move(rest));
    if (!dict.ok()) return failed(std::move(dict).error());
    set(inner, macro.kwargs_id, *std::move(dict));
  } else if (!named.empty()) {
    return failed(type_fault(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, named[0].first)));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    Out<Value> tuple = runtime_.tuple(std::move(rest));
    if (!tuple.ok()) return failed(std::move(tuple).error());
    set(inner, macro.varargs_id, *std::move(tuple));
  } else if (arguments.positional.size() > count) {
    return failed(type_fault(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, count)));
  }
  for (const size_t i : absent) {
    const size_t from_end = count - i;
    if (from_end <= macro.defaults.size()) {
      Out<Value> value = evaluate(*macro.defaults[macro.defaults.size() - from_end], inner);
      if (!value.ok()) return failed(std::move(value).error());
      set(inner, macro.parameters[i], *std::move(value));
    } else {
      set(inner, macro.parameters[i],
          Value::undefined(fmt::format("parameter '{}' was not provided", macro.parameter_names[i])));
    }
  }

  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Out<Flow> flow = execute(macro.body, inner);
  out_ = outer;
  leave();
  if (!flow.ok()) return std::move(flow).error();
  return runtime_.text(std::move(text));
}

}  // namespace tare::text::jinja
