#include "cli/quantize_calibration.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/file.h"
#include "base/sha256.h"
#include "checkpoints/text_assets.h"
#include "cli/eval_flags.h"
#include "quantize/default_text.h"
#include "text/chat_template.h"

namespace tare::cli {

namespace {

using Sequences = std::vector<std::vector<int32_t>>;

Result<std::vector<int32_t>> encode(const text::Tokenizer& tokenizer, const std::string& content, bool specials) {
  TARE_ASSIGN(const text::Encoding encoded,
              tokenizer.encode(content, {.add_special = false, .specials_as_text = !specials}));
  return std::vector<int32_t>(encoded.ids.begin(), encoded.ids.end());
}

// Lists of ids: [[1, 2], [3]] keeps its sequences, [1, 2, 3] is cut.
Result<Sequences> read_ids(const std::string& file, int64_t samples, int64_t length) {
  TARE_ASSIGN(const std::string content, read_text_file(file));
  TARE_ASSIGN(const json::value parsed, json::parse(content, file));
  const json::array* top = parsed.if_array();
  if (!top) return invalid_input("token file is no list", {.where = file});
  if (top->empty() || !(*top)[0].is_array()) {
    TARE_ASSIGN(const std::vector<int32_t> ids, parse_token_ids(content, file));
    TARE_ASSIGN(quantize::CalibrationData cut, quantize::calibration_windows(ids, samples, length));
    return std::move(cut.sequences);
  }
  Sequences out;
  for (const json::value& list : *top) {
    if (static_cast<int64_t>(out.size()) == samples) break;
    TARE_ASSIGN(std::vector<int32_t> ids, parse_token_ids(boost::json::serialize(list), file));
    if (static_cast<int64_t>(ids.size()) > length) ids.resize(static_cast<size_t>(length));
    if (!ids.empty()) out.push_back(std::move(ids));
  }
  return out;
}

// One line's conversation as its own tokens. `content_tokens`: those of the messages' words alone.
Result<std::vector<int32_t>> read_line(const json::object& row, const text::Tokenizer& tokenizer,
                                       const std::optional<checkpoints::ChatAssets>& chat, const std::string& where,
                                       int64_t& content_tokens) {
  const json::value* messages = row.if_contains("messages");
  const json::value* words = row.if_contains("text");
  if (words && words->is_string() && !messages) {
    TARE_ASSIGN(std::vector<int32_t> ids, encode(tokenizer, std::string(words->get_string()), false));
    content_tokens += static_cast<int64_t>(ids.size());
    return ids;
  }
  if (!messages || !messages->is_array()) {
    return invalid_input("not a conversation",
                         {.where = where, .expected = "{\"messages\": [...]} or {\"text\": ...}"});
  }
  if (!chat) {
    return invalid_input("conversations need a chat template, and the model has none",
                         {.where = where, .hint = "give {\"text\": ...} lines instead"});
  }
  TARE_ASSIGN(const std::string prompt, chat->chat_template.render({.messages = &messages->get_array(),
                                                                    .add_generation_prompt = false,
                                                                    .special_tokens = chat->special_tokens}));
  for (const json::value& message : messages->get_array()) {
    const json::object* one = message.if_object();
    const json::value* content = one ? one->if_contains("content") : nullptr;
    if (!content || !content->is_string()) continue;
    TARE_ASSIGN(const std::vector<int32_t> ids, encode(tokenizer, std::string(content->get_string()), false));
    content_tokens += static_cast<int64_t>(ids.size());
  }
  // The template has written the special tokens: nothing is added a second time.
  return encode(tokenizer, prompt, true);
}

Result<Sequences> read_conversations(const std::string& model, const std::string& file, int64_t samples, int64_t length,
                                     CalibrationInput& out) {
  TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(model));
  TARE_ASSIGN(const std::optional<checkpoints::ChatAssets> chat, checkpoints::load_chat_template(model));
  TARE_ASSIGN(const std::string content, read_text_file(file));
  Sequences sequences;
  int64_t line_number = 0, cut = 0, tokens = 0, words = 0;
  for (size_t at = 0; at < content.size() && static_cast<int64_t>(sequences.size()) < samples;) {
    const size_t end = std::min(content.find('\n', at), content.size());
    const std::string_view line = std::string_view(content).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{}, line {}", file, line_number);
    TARE_ASSIGN(const json::value parsed, json::parse(line, where));
    if (!parsed.is_object()) return invalid_input("not a conversation", {.where = where});
    TARE_ASSIGN(std::vector<int32_t> ids, read_line(parsed.get_object(), tokenizer, chat, where, words));
    tokens += static_cast<int64_t>(ids.size());
    if (static_cast<int64_t>(ids.size()) > length) {
      ids.resize(static_cast<size_t>(length));
      ++cut;
    }
    if (!ids.empty()) sequences.push_back(std::move(ids));
  }
  if (tokens > 0) {
    const double share = 1.0 - static_cast<double>(std::min(words, tokens)) / static_cast<double>(tokens);
    out.record["template_share"] = share;
    out.notes.push_back(
        fmt::format("calibration: {:.1f} % of {} tokens in {} conversations are the chat template's own", 100 * share,
                    tokens, sequences.size()));
  }
  if (cut > 0) out.notes.push_back(fmt::format("calibration: {} conversations cut at {} tokens", cut, length));
  return sequences;
}

}  // namespace

Result<CalibrationInput> read_calibration(const std::string& model, const std::string& file, int64_t samples,
                                          int64_t length) {
  if (samples < 1 || length < 1) {
    return invalid_input("calibration needs tokens", {.where = "--samples, --sequence-length"});
  }
  CalibrationInput out;
  Sequences sequences;
  if (file.empty()) {
    TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(model));
    TARE_ASSIGN(const std::vector<int32_t> ids,
                encode(tokenizer, std::string(quantize::default_calibration_text()), false));
    TARE_ASSIGN(quantize::CalibrationData cut, quantize::calibration_windows(ids, samples, length));
    sequences = std::move(cut.sequences);
    out.notes.push_back(fmt::format(
        "calibration: no --calibration, so the built-in English text was used ({} windows of {} tokens{})",
        sequences.size(), length,
        static_cast<int64_t>(sequences.size()) < samples ? fmt::format(", it has no more of {} asked for", samples)
                                                         : ""));
  } else if (file.ends_with(".json")) {
    TARE_ASSIGN(sequences, read_ids(file, samples, length));
  } else if (file.ends_with(".jsonl")) {
    TARE_ASSIGN(sequences, read_conversations(model, file, samples, length, out));
  } else {
    TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(model));
    TARE_ASSIGN(const std::string content, read_text_file(file));
    TARE_ASSIGN(const std::vector<int32_t> ids, encode(tokenizer, content, false));
    TARE_ASSIGN(quantize::CalibrationData cut, quantize::calibration_windows(ids, samples, length));
    sequences = std::move(cut.sequences);
  }
  Sha256 hash;
  for (const std::vector<int32_t>& sequence : sequences) {
    out.data.tokens += static_cast<int64_t>(sequence.size());
    const auto count = static_cast<int64_t>(sequence.size());
    hash.update(std::as_bytes(std::span(&count, 1)));
    hash.update(std::as_bytes(std::span(sequence)));
  }
  if (out.data.tokens == 0) return invalid_input("calibration data holds no tokens", {.where = file});
  out.data.sequences = std::move(sequences);
  out.sha256 = hash.hex();
  out.record["file"] = file.empty() ? "built in" : file;
  out.record["sequences"] = out.data.sequences.size();
  out.record["sequence_length"] = length;
  out.record["tokens"] = out.data.tokens;
  out.record["sha256"] = out.sha256;
  return out;
}

}  // namespace tare::cli
