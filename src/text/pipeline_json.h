#pragma once

#include <string_view>

#include "base/json.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"

namespace tare::text {

/// The parts of tokenizer.json, each from its object. Sequences become flat lists. An unknown type is refused by name.
/// Only for loaders: this header brings the JSON library.
Result<Normalizer> parse_normalizer(const json::value& from, std::string_view where);
Result<PreTokenizer> parse_pre_tokenizer(const json::value& from, std::string_view where);
Result<PostProcessor> parse_post_processor(const json::value& from, std::string_view where);
Result<Decoder> parse_decoder(const json::value& from, std::string_view where);

/// Bytes of base64 text. Errors: a character outside the alphabet, a length that is no multiple of four.
Result<std::string> decode_base64(std::string_view text, std::string_view where);

}  // namespace tare::text
