#pragma once

#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::text {

/// A tokenizer from the text of a tokenizer.json (format of the tokenizers library, version 1.0): models BPE and
/// Unigram. `where` names the file in messages. Truncation and padding settings are not applied; a warning says so.
/// Errors: malformed JSON; an unknown or unsupported model, normalizer, pre-tokenizer, post-processor or decoder
/// (named); merges or added tokens that do not fit the vocabulary; ids with holes, twice, or out of range.
Result<Tokenizer> load_tokenizer_json(std::string_view json_text, std::string_view where);

}  // namespace tare::text
