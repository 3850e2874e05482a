#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::runtime {

/// What config.json, generation_config.json and the tokenizer of a model say differently about its tokens, one line
/// each; empty when all agree. Compared: bos_token_id and pad_token_id, whether ids of the tokenizer have a row in the
/// embedding, and whether ends of sequence (config and generation_config) have a token. What is followed is said in
/// each line. For a GGUF the config is made from the same metadata as the tokenizer. tokenizer: nullptr when there is
/// none. Errors: a malformed file or id.
Result<std::vector<std::string>> token_contradictions(const std::string& model_path, const json::object& config,
                                                      const text::Tokenizer* tokenizer, int64_t vocab_size);

/// generation_config.json of a model, in its folder or beside its file; an empty object when there is none.
Result<json::object> read_generation_config(const std::string& model_path);

}  // namespace tare::runtime
