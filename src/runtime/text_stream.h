#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tare::runtime {

/// The text of one output as it grows: whole characters only, and nothing that may still become a stop string. What is
/// held back comes out at the end, so that joined pieces equal the text made at once.
class TextStream {
 public:
  TextStream(text::Tokenizer tokenizer, bool skip_special, std::vector<std::string> stop, bool include_stop);

  /// Adds a token; returns text that is final. After a stop string was found (`stopped`), nothing more is accepted.
  /// An id above the tokenizer's adds no text: embeddings are often padded beyond the vocabulary. Errors: a negative
  /// id.
  Result<std::string> push(int32_t id);
  /// The end of the output: what was held back.
  std::string finish();

  /// The stop string that was found, if one was.
  const std::optional<std::string>& stopped() const { return stopped_; }

 private:
  std::string release(bool all);

  size_t vocab_size_;
  text::IncrementalDecoder decoder_;
  std::vector<std::string> stop_;
  bool include_stop_;
  std::string pending_;  // decoded, not yet given out
  std::optional<std::string> stopped_;
};

}  // namespace tare::runtime
