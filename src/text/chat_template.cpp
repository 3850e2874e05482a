#include "text/chat_template.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "text/jinja/from_json.h"
#include "text/jinja/interpreter.h"

namespace tare::text {

namespace {

using Kind = ChatTemplateFailure::Kind;

Error report(const jinja::Fault& fault, const std::string& name, ChatTemplateFailure* failure) {
  ChatTemplateFailure told;
  switch (fault.kind) {
    case jinja::FaultKind::kSyntax:
      told.kind = Kind::kSyntax;
      break;
    case jinja::FaultKind::kRaised:
      told.kind = Kind::kRaised;
      break;
    case jinja::FaultKind::kTemplate:
      told.kind = Kind::kFailed;
      break;
    case jinja::FaultKind::kLimit:
      told.kind = Kind::kLimit;
      break;
  }
  told.message = fault.message;
  told.line = fault.line;
  if (failure) *failure = told;
  constexpr std::string_view kWhat[] = {"chat template does not parse", "chat template refuses the conversation",
                                        "chat template failed", "chat template exceeds a limit"};
  std::string where = "template " + name;
  if (fault.line > 0) where += fmt::format(", line {}", fault.line);
  return invalid_input(fmt::format("{}: {}", kWhat[static_cast<size_t>(told.kind)], fault.message), {.where = where});
}

bool reserved(std::string_view name) {
  return name == "messages" || name == "tools" || name == "add_generation_prompt";
}

jinja::Out<std::string> render_parsed(const jinja::Template& parsed, const ChatTemplateInput& input) {
  jinja::Runtime runtime(input.limits, input.now);
  jinja::Interpreter interpreter(parsed, runtime);
  for (const auto& [name, token] : input.special_tokens) interpreter.set_variable(name, jinja::Value::string(token));
  const auto set_json = [&](std::string_view name, const boost::json::value* json) -> jinja::Out<void> {
    jinja::Value value = jinja::None{};
    if (json) {
      TARE_ASSIGN(value, jinja::from_json(runtime, *json));
    }
    interpreter.set_variable(name, value);
    return {};
  };
  TARE_TRY(set_json("tools", input.tools));
  TARE_TRY(set_json("documents", input.documents));
  interpreter.set_variable("add_generation_prompt", jinja::Value::boolean(input.add_generation_prompt));
  if (input.messages) {
    TARE_ASSIGN(const jinja::Value messages, jinja::from_json(runtime, *input.messages));
    interpreter.set_variable("messages", messages);
  } else {
    TARE_ASSIGN(const jinja::Value empty, runtime.list({}));
    interpreter.set_variable("messages", empty);
  }
  if (input.kwargs) {
    for (const auto& [name, json] : *input.kwargs) {
      if (reserved(name) || (name == "documents" && input.documents)) {
        return jinja::type_fault(
            fmt::format("template variable '{}' cannot be set by an extra argument", std::string_view(name)));
      }
      TARE_TRY(set_json(name, &json));
    }
  }
  return interpreter.run();
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view name, ChatTemplateFailure* failure) {
  ChatTemplate made;
  made.name_ = name;
  jinja::Out<std::unique_ptr<const jinja::Template>> parsed = jinja::parse_template(source, {});
  if (!parsed.ok()) return report(parsed.fault(), made.name_, failure);
  made.parsed_ = *std::move(parsed);
  return made;
}

Result<std::string> ChatTemplate::render(const ChatTemplateInput& input, ChatTemplateFailure* failure) const {
  jinja::Out<std::string> text = render_parsed(*parsed_, input);
  if (!text.ok()) return report(text.fault(), name_, failure);
  return *std::move(text);
}

Status ChatTemplate::probe(const std::map<std::string, std::string>& special_tokens) const {
  boost::json::object message;
  message["role"] = "user";
  message["content"] = "Hi";
  boost::json::array messages;
  messages.push_back(std::move(message));
  ChatTemplateInput input;
  input.messages = &messages;
  input.special_tokens = special_tokens;
  ChatTemplateFailure failure;
  Result<std::string> text = render(input, &failure);
  if (text.ok() || failure.kind == Kind::kRaised) return {};
  return std::move(text).error();
}

}  // namespace tare::text
