#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex.h"

namespace tare::text {

/// One step of decoding: works on the list of token texts. Sequences are flat lists of steps.
struct DecoderStep {
  enum class Kind {
    kByteLevel,     // characters to bytes; the whole list becomes one text
    kReplace,       // in each text
    kByteFallback,  // <0xXX> to bytes
    kFuse,          // the list becomes one text
    kStrip,         // up to start and stop characters `content` at the ends of each text
    kMetaspace,     // content to spaces; dropped in the first text
    kBpe,           // suffix (pattern) to a space, to nothing in the last text
    kWordPiece,     // prefix (pattern) joins, else a space
    kCtc,
  };
  Kind kind = Kind::kFuse;
  std::string pattern;
  std::string content;
  std::shared_ptr<const Regex> regex;
  size_t start = 0;
  size_t stop = 0;
  bool prefix_space = true;  // kMetaspace: drop the marks of the first text
  bool cleanup = false;
};

using Decoder = std::vector<DecoderStep>;

/// All steps, then the texts joined (with spaces between them when there is no step at all).
/// Source: the decoders of the tokenizers library 0.23.
Result<std::string> decode_tokens(const Decoder& decoder, std::vector<std::string> tokens);

/// Byte of a SentencePiece byte token (<0x41>), or -1.
int byte_of_token(std::string_view token);

}  // namespace tare::text
