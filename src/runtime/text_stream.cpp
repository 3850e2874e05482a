#include "runtime/text_stream.h"

#include <algorithm>

namespace tare::runtime {

namespace {

// Length of the longest end of `text` that is a proper beginning of one of the stop strings.
size_t possible_stop_length(const std::string& text, const std::vector<std::string>& stop) {
  size_t longest = 0;
  for (const std::string& s : stop) {
    for (size_t length = std::min(text.size(), s.size() - 1); length > longest; --length) {
      if (text.compare(text.size() - length, length, s, 0, length) == 0) longest = length;
    }
  }
  return longest;
}

}  // namespace

TextStream::TextStream(text::Tokenizer tokenizer, bool skip_special, std::vector<std::string> stop, bool include_stop)
    : vocab_size_(tokenizer.vocab_size()),
      decoder_(std::move(tokenizer), skip_special),
      stop_(std::move(stop)),
      include_stop_(include_stop) {}

Result<std::string> TextStream::push(int32_t id) {
  if (stopped_) return std::string();
  if (id >= 0 && static_cast<size_t>(id) >= vocab_size_) return std::string();
  TARE_ASSIGN(const std::string piece, decoder_.push(static_cast<text::TokenId>(id)));
  pending_ += piece;
  return release(false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  pending_ += decoder_.finish();
  return release(true);
}

std::string TextStream::release(bool all) {
  // The earliest match wins; of two that start together the longer one cannot be waited for, so the shorter ends the
  // text.
  size_t at = std::string::npos;
  for (const std::string& s : stop_) {
    const size_t found = pending_.find(s);
    if (found < at || (found == at && found != std::string::npos && s.size() < stopped_->size())) {
      at = found;
      stopped_ = s;
    }
  }
  size_t count = pending_.size();
  if (stopped_) {
    count = at + (include_stop_ ? stopped_->size() : 0);
  } else if (!all) {
    size_t held = possible_stop_length(pending_, stop_);
    // Held text must not begin inside a character of what is given out.
    while (held < pending_.size() && (static_cast<unsigned char>(pending_[pending_.size() - held]) & 0xc0) == 0x80 &&
           held > 0)
      ++held;
    count -= held;
  }
  std::string out = pending_.substr(0, count);
  pending_.erase(0, count);
  return out;
}

}  // namespace tare::runtime
