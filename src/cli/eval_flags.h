#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "eval/windows.h"

namespace tare::cli {

/// Flags that say what is scored and how.
struct EvalFlags {
  std::string text_file;
  std::string token_file;
  eval::Protocol protocol;
};

void declare_eval(CLI::App& app, EvalFlags& flags);

/// Ids separated by commas or white space, brackets allowed. Errors name the byte.
Result<std::vector<int32_t>> parse_token_ids(std::string_view text, const std::string& where);

/// Token ids of --text (with the model's tokenizer, nothing added) or --token-file (JSON list, or ids separated by
/// white space).
Result<std::vector<int32_t>> eval_tokens(const std::string& model_path, EvalFlags& flags);

}  // namespace tare::cli
