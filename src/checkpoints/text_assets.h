#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tare::checkpoints {

/// The tokenizer of a model, weights or not: of a folder what text/tokenizer_directory.h finds there, else the
/// vocabulary of its GGUF; or such a file itself. Errors: no tokenizer there; whatever the tokenizer's reader refuses.
Result<text::Tokenizer> load_tokenizer(const std::string& path);

struct ChatAssets {
  text::ChatTemplate chat_template;
  std::map<std::string, std::string> special_tokens;  // bos_token, eos_token, ... as the template names them
  std::vector<std::string> notes;                     // which of several templates was taken
};

/// The chat template of a model: chat_template.jinja, chat_template.json or tokenizer_config.json of a folder,
/// tokenizer.chat_template of a GGUF; nothing when the model has none. Of a list of named templates `name` is taken
/// (empty: "default").
/// Errors: a template that does not parse; two different templates; a name that is not in the list.
Result<std::optional<ChatAssets>> load_chat_template(const std::string& path, const std::string& name = {});

}  // namespace tare::checkpoints
