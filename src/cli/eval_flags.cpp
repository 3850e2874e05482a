#include "cli/eval_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/file.h"
#include "checkpoints/text_assets.h"

namespace tare::cli {

Result<std::vector<int32_t>> parse_token_ids(std::string_view text, const std::string& where) {
  std::vector<int32_t> ids;
  const auto separator = [](char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ',' || c == '[' || c == ']';
  };
  for (size_t at = 0; at < text.size();) {
    if (separator(text[at])) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    if (error != std::errc() || id < 0 || (end != text.data() + text.size() && !separator(*end))) {
      return invalid_input("not a token id", {.where = fmt::format("{}, byte {}", where, at),
                                              .expected = "integers separated by commas or white space",
                                              .found = fmt::format("'{}'", text.substr(at, 20))});
    }
    ids.push_back(id);
    at = static_cast<size_t>(end - text.data());
  }
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
