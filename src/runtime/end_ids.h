#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::runtime {

/// Where the ends of sequence of a model are named.
struct EndIds {
  std::vector<int32_t> ids;        // united, ascending
  std::vector<std::string> notes;  // sources that name different ones
};

/// Unites eos_token_id of config.json and generation_config.json (a number or a list) with the tokenizer's end of
/// sequence and end of turn. Sources that disagree are all taken and said. tokenizer: nullptr when there is none.
/// Errors: an id that is no id of the model; a malformed file.
Result<EndIds> end_ids(const std::string& model_path, const json::object& config, const text::Tokenizer* tokenizer,
                       int64_t vocab_size);

}  // namespace tare::runtime
