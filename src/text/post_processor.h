#pragma once

#include <string>
#include <vector>

#include "text/aligned_text.h"
#include "text/vocabulary.h"

namespace tare::text {

/// One step after the model. Sequences are flat lists of steps.
struct PostProcessorStep {
  enum class Kind {
    kTemplate,     // special tokens around the text
    kTrimOffsets,  // white space out of the ranges of the tokens (ByteLevel with trim_offsets)
  };
  struct Part {
    bool text = false;  // the encoded text, else special tokens
    std::vector<TokenId> ids;
  };
  Kind kind = Kind::kTemplate;
  std::vector<Part> parts;
  bool add_prefix_space = true;  // kTrimOffsets: a single space in front of the first token stays
};

using PostProcessor = std::vector<PostProcessorStep>;

}  // namespace tare::text
