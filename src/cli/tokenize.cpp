#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "base/log.h"
#include "checkpoints/text_assets.h"
#include "cli/command.h"
#include "cli/json_lines.h"

namespace tare::cli {

namespace {

struct Options {
  std::string model;
  std::optional<std::string> text;
  std::string text_file;
  std::string json_lines;
  bool no_special = false;
  bool specials_as_text = false;
};

Result<json::object> encode(const text::Tokenizer& tokenizer, std::string_view text, text::EncodeOptions options) {
  TARE_ASSIGN(const text::Encoding encoding, tokenizer.encode(text, options));
  json::array ids, tokens, offsets;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    TARE_ASSIGN(const std::string_view token, tokenizer.token_text(encoding.ids[i]));
    ids.emplace_back(encoding.ids[i]);
    tokens.emplace_back(token);
    offsets.push_back(json::array{encoding.offsets[i].begin, encoding.offsets[i].end});
  }
  json::object out{{"ids", std::move(ids)}, {"tokens", std::move(tokens)}, {"offsets", std::move(offsets)}};
  out["dropped_bytes"] = encoding.dropped_bytes;
  return out;
}

Result<json::object> encode_line(const text::Tokenizer& tokenizer, const json::object& line, const Options& options) {
  TARE_ASSIGN(const std::string text, json::get_string(line, "text", "line"));
  TARE_ASSIGN(const bool add_special, json::get_bool_or(line, "add_special", !options.no_special, "line"));
  TARE_ASSIGN(const bool as_text, json::get_bool_or(line, "specials_as_text", options.specials_as_text, "line"));
  return encode(tokenizer, text, {.add_special = add_special, .specials_as_text = as_text});
}

Status tokenize(Context& context, const Options& options) {
  const int sources =
      int(options.text.has_value()) + int(!options.text_file.empty()) + int(!options.json_lines.empty());
  if (sources != 1) {
    return invalid_input("what to tokenize?", {.where = "tare tokenize",
                                               .expected = "one of --text, --text-file, --jsonl",
                                               .found = fmt::format("{}", sources)});
  }
  TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(options.model));
  for (const std::string& warning : tokenizer.warnings()) log::warn("{}", warning);
  if (!options.json_lines.empty()) {
    return for_each_json_line(context, options.json_lines, {"text", "add_special", "specials_as_text"},
                              [&](const json::object& line) { return encode_line(tokenizer, line, options); });
  }
  std::string text;
  if (options.text) {
    text = *options.text;
  } else {
    TARE_ASSIGN(text, read_input(options.text_file));
  }
  TARE_ASSIGN(
      const json::object document,
      encode(tokenizer, text, {.add_special = !options.no_special, .specials_as_text = options.specials_as_text}));
  const uint64_t dropped = document.at("dropped_bytes").to_number<uint64_t>();
  if (dropped > 0) log::warn("{} bytes of the text have no token and are missing from the ids", dropped);
  for (size_t i = 0; i < document.at("ids").as_array().size(); ++i) {
    context.say(fmt::format("{:>8}  {}", document.at("ids").as_array()[i].to_number<uint64_t>(),
                            std::string_view(document.at("tokens").as_array()[i].as_string())));
  }
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kTokenize;
const Command kTokenize = {
    .name = "tokenize",
    .summary = "text to token ids, with the bytes that each token covers",
    .examples =
        "tare tokenize model/ --text 'Hello world'\n"
        "tare tokenize model.gguf --text-file book.txt --json\n"
        "tare tokenize tokenizer.json --jsonl texts.jsonl > ids.jsonl",
    .declare = [](CLI::App& app) -> Runner {
      auto options = std::make_shared<Options>();
      app.add_option("MODEL", options->model, "folder, tokenizer.json, tokenizer.model or .gguf")->required();
      app.add_option("--text", options->text, "the text")->type_name("T");
      app.add_option("--text-file", options->text_file, "a file with the text; - is standard input")->type_name("F");
      app.add_option("--jsonl", options->json_lines,
                     "one {text, add_special, specials_as_text} a line, one line out each")
          ->type_name("F");
      app.add_flag("--no-special", options->no_special, "nothing added around the text (BOS, EOS)");
      app.add_flag("--specials-as-text", options->specials_as_text, "control tokens written in the text stay text");
      return [options](Context& context) { return tokenize(context, *options); };
    },
};

}  // namespace tare::cli
