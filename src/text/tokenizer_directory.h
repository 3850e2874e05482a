#pragma once

#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::text {

/// The tokenizer of a model folder: tokenizer.json, else tekken.json, else tokenizer.model or spiece.model
/// (SentencePiece or a tiktoken rank file, told apart by content), else the only *.tiktoken file. `source()` names the
/// file taken. tokenizer_config.json and special_tokens_map.json give the roles (bos, eos, ...), and for files that do
/// not say it themselves whether BOS and EOS are added and which tokens were added; where they contradict each other or
/// the tokenizer, the tokenizer's own file is followed and a warning says so. Errors: no such file; whatever its reader
/// refuses; a role whose token does not exist is a warning.
Result<Tokenizer> load_tokenizer_from_directory(const std::string& directory);

/// Whether the folder has a file that load_tokenizer_from_directory would take.
bool holds_tokenizer(const std::string& directory);

}  // namespace tare::text
