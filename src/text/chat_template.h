#pragma once

#include <boost/json/fwd.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

namespace tare::text {

using jinja::CivilTime;
using TemplateLimits = jinja::RenderLimits;

/// One conversation to render. The JSON values stay the caller's; null pointers mean None (messages: an empty list).
struct ChatTemplateInput {
  const boost::json::array* messages = nullptr;
  const boost::json::value* tools = nullptr;
  const boost::json::value* documents = nullptr;
  const boost::json::object* kwargs = nullptr;  // further variables; they win over special tokens
  bool add_generation_prompt = true;
  std::map<std::string, std::string> special_tokens;  // bos_token, eos_token, ...
  std::optional<CivilTime> now;                       // of strftime_now; none: the system's local time
  TemplateLimits limits;
};

/// Why a template could not be read or a conversation not be rendered.
struct ChatTemplateFailure {
  enum class Kind {
    kSyntax,  // the template is malformed or needs what does not exist
    kRaised,  // the template itself refuses the conversation (raise_exception)
    kFailed,  // undefined value, wrong type
    kLimit,   // steps, depth or size
  };
  Kind kind = Kind::kFailed;
  std::string message;  // of kRaised: exactly what the template says
  int line = 0;         // of the template; 0: none
};

/// A chat template: Jinja as model publishers use it (trim_blocks, lstrip_blocks, loop controls, the generation tag,
/// tojson, raise_exception, strftime_now), in a sandbox without input, output or access to anything but its variables.
/// Immutable: any number of threads may render at once.
/// Source: checked against Jinja2 3.1.6 and the renderings in the reference data.
class ChatTemplate {
 public:
  /// name stands in messages. Errors: kInvalidInput with the line. A template that does not parse is never replaced.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view name,
                                    ChatTemplateFailure* failure = nullptr);

  /// The prompt as text. Errors: kInvalidInput; `failure`, where given, says which kind, with the template's own words.
  Result<std::string> render(const ChatTemplateInput& input, ChatTemplateFailure* failure = nullptr) const;

  /// Renders a conversation of one user message ("Hi"), to refuse a template when the model is loaded and not at the
  /// first request. A template that raises for it is accepted: its words are no defect.
  Status probe(const std::map<std::string, std::string>& special_tokens) const;

  const std::string& name() const { return name_; }

 private:
  ChatTemplate() = default;

  std::string name_;
  std::shared_ptr<const jinja::Template> parsed_;
};

}  // namespace tare::text
