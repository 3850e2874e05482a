#include <algorithm>

#include "text/tokenizer.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tare::text {

namespace {

void replace_literal(std::string& text, const DecoderStep& step, std::string_view to) {
  const std::string& from = step.kind == DecoderStep::Kind::kMetaspace ? step.content : step.pattern;
  for (size_t at = text.find(from); !from.empty() && at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// The bytes that a token adds to the output.
std::string token_bytes(const StreamRule& rule, std::string text, bool first) {
  switch (rule.kind) {
    case StreamRule::Kind::kByteLevel: {
      std::string bytes;
      for (size_t at = 0; at < text.size();) {
        const DecodedChar c = decode_char(text.data(), at);
        at += c.bytes;
        const int byte = char_to_byte(c.value);
        if (byte < 0) return text;
        bytes += static_cast<char>(byte);
      }
      return bytes;
    }
    case StreamRule::Kind::kMetaspace:
      if (const int byte = byte_of_token(text); rule.byte_fallback && byte >= 0) {
        return std::string(1, static_cast<char>(byte));
      }
      replace_literal(text, rule.replace[0], first && rule.replace[0].prefix_space ? "" : " ");
      return text;
    case StreamRule::Kind::kPieces:
      if (rule.byte_fallback) {
        const int byte = byte_of_token(text);
        if (byte >= 0) return std::string(1, static_cast<char>(byte));
      }
      for (const DecoderStep& step : rule.replace) replace_literal(text, step, step.content);
      return text;
    case StreamRule::Kind::kSpaced:
      return first ? text : std::string(" ").append(text);
    case StreamRule::Kind::kWindow:
      break;
  }
  return text;
}

}  // namespace

IncrementalDecoder::IncrementalDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      strip_left_(tokenizer_.state().stream.strip_start) {}

Result<std::string> IncrementalDecoder::push(TokenId id) {
  TARE_TRY(tokenizer_.token_text(id));
  if (tokenizer_.state().is_hole[id] || (skip_special_ && tokenizer_.state().is_skipped[id])) return std::string();
  const StreamRule& rule = tokenizer_.state().stream;
  if (rule.kind == StreamRule::Kind::kWindow) return push_window(id);
  std::string bytes = token_bytes(rule, tokenizer_.state().decode_text_of(id), !started_);
  started_ = true;
  if (strip_left_ > 0 && !bytes.empty()) {
    std::string_view rest = bytes;
    while (strip_left_ > 0 && rest.starts_with(rule.strip)) {
      rest.remove_prefix(rule.strip.size());
      --strip_left_;
    }
    if (!rest.empty()) strip_left_ = 0;
    bytes = std::string(rest);
  }
  pending_ += bytes;
  return release(false);
}

// Emits what is complete; with `all` also an incomplete tail.
std::string IncrementalDecoder::release(bool all) {
  std::string out;
  for (;;) {
    const Utf8Scan scan = scan_utf8(pending_);
    out.append(pending_, 0, scan.valid);
    pending_.erase(0, scan.valid);
    if (scan.bad != 0) {
      out += "\xEF\xBF\xBD";
      pending_.erase(0, scan.bad);
      continue;
    }
    if (scan.incomplete && all) {
      out += "\xEF\xBF\xBD";
      pending_.clear();
    }
    return out;
  }
}

// Decoders that look across tokens: decode the ids since the last clean cut with and without the new one, and emit the
// difference once it does not end in the middle of a character.
Result<std::string> IncrementalDecoder::push_window(TokenId id) {
  ids_.push_back(id);
  TARE_ASSIGN(const std::string before, tokenizer_.decode(std::span(ids_).first(shown_), skip_special_));
  TARE_ASSIGN(const std::string after, tokenizer_.decode(ids_, skip_special_));
  if (after.size() <= before.size() || after.ends_with("\xEF\xBF\xBD")) return std::string();
  if (shown_ > 0) ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(shown_));
  shown_ = ids_.size();
  return after.substr(before.size());
}

std::string IncrementalDecoder::finish() {
  std::string out = release(true);
  if (!ids_.empty() && shown_ < ids_.size()) {
    const auto before = tokenizer_.decode(std::span(ids_).first(shown_), skip_special_);
    const auto after = tokenizer_.decode(ids_, skip_special_);
    if (before.ok() && after.ok() && after->size() > before->size()) out += after->substr(before->size());
  }
  ids_.clear();
  shown_ = 0;
  started_ = false;
  strip_left_ = tokenizer_.state().stream.strip_start;
  return out;
}

}  // namespace tare::text
