#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tare::text {

/// The chat template of a model directory, and where it was found.
struct ChatTemplateSource {
  std::string text;
  std::string file;                                   // of the chosen template
  std::map<std::string, std::string> named;           // further templates by name (tool_use, rag, ...)
  std::map<std::string, std::string> special_tokens;  // bos_token, eos_token, ... of tokenizer_config.json
  std::vector<std::string> warnings;                  // places that contradict the chosen one
};

/// Looks in chat_template.jinja, tokenizer_config.json ("chat_template": text or list of {name, template}),
/// chat_template.json, and additional_chat_templates/*.jinja for named ones. The first of these that has a template
/// wins, as in transformers; another one with different text is named in `warnings`. Nothing when the directory has
/// none. Errors: a file that cannot be read or has the wrong shape; several named templates of which none is "default".
Result<std::optional<ChatTemplateSource>> find_chat_template(const std::string& directory);

}  // namespace tare::text
