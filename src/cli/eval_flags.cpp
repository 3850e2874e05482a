#include "cli/eval_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>

#include "base/file.h"
#include "checkpoints/text_assets.h"

namespace tare::cli {

Result<std::vector<int32_t>> parse_token_ids(std::string_view text, const std::string& where) {
  // White space and brackets may stand anywhere; between two numbers at most one comma, and none at the ends.
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '[' || c == ']'; };
  const auto wrong = [&](size_t at, std::string found) {
    return invalid_input("not a list of token ids", {.where = fmt::format("{}, byte {}", where, at),
                                                     .expected = "integers separated by commas or white space",
                                                     .found = std::move(found)});
  };
  std::vector<int32_t> ids;
  std::optional<size_t> comma;
  for (size_t at = 0; at < text.size();) {
    if (blank(text[at])) {
      ++at;
      continue;
    }
    if (text[at] == ',') {
      if (comma || ids.empty()) return wrong(at, "a comma without an id before it");
      comma = at++;
      continue;
    }
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    if (error != std::errc() || id < 0 || (end != text.data() + text.size() && !blank(*end) && *end != ',')) {
      return wrong(at, fmt::format("'{}'", text.substr(at, 20)));
    }
    ids.push_back(id);
    comma.reset();
    at = static_cast<size_t>(end - text.data());
  }
  if (comma) return wrong(*comma, "a comma without an id behind it");
  return ids;
}

void declare_eval(CLI::App& app, EvalFlags& flags) {
  app.add_option("--text", flags.text_file, "text file to score");
  app.add_option("--token-file", flags.token_file, "token ids instead of text");
  app.add_option("--context", flags.protocol.context, "tokens of a window")->capture_default_str();
  app.add_option("--windows", flags.protocol.windows, "score at most this many windows (0 = all)")
      ->capture_default_str();
  app.add_option("--protocol", flags.protocol.name,
                 "windows (all targets of each, no BOS) or llama (second half of each, BOS first)")
      ->capture_default_str();
}

Result<std::vector<int32_t>> eval_tokens(const std::string& model_path, EvalFlags& flags) {
  TARE_TRY(eval::check(flags.protocol));
  if (flags.text_file.empty() == flags.token_file.empty()) {
    return invalid_input("what to score is not clear", {.where = "--text, --token-file", .expected = "one of the two"});
  }
  const bool needs_tokenizer = !flags.text_file.empty() || flags.protocol.name == "llama";
  std::vector<int32_t> ids;
  if (needs_tokenizer) {
    TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(model_path));
    if (flags.protocol.name == "llama") {
      if (!tokenizer.special().bos) {
        return invalid_input("protocol llama needs a BOS token",
                             {.where = model_path, .hint = "use --protocol windows"});
      }
      flags.protocol.bos = static_cast<int32_t>(*tokenizer.special().bos);
    }
    if (!flags.text_file.empty()) {
      TARE_ASSIGN(const std::string content, read_text_file(flags.text_file));
      TARE_ASSIGN(const text::Encoding encoded,
                  tokenizer.encode(content, {.add_special = false, .specials_as_text = true}));
      ids.assign(encoded.ids.begin(), encoded.ids.end());
      return ids;
    }
  }
  TARE_ASSIGN(const std::string content, read_text_file(flags.token_file));
  return parse_token_ids(content, flags.token_file);
}

}  // namespace tare::cli
