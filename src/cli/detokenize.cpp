#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "checkpoints/text_assets.h"
#include "cli/command.h"
#include "cli/eval_flags.h"
#include "cli/json_lines.h"

namespace tare::cli {

namespace {

struct Options {
  std::string model;
  std::optional<std::string> ids;
  std::string json_lines;
  bool skip_special = false;
};

// increments: one piece of text for each id, as a stream would show it, and a last one when bytes of an unfinished
// character are left over.
Result<json::object> decode(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  TARE_ASSIGN(std::string text, tokenizer.decode(ids, skip_special));
  text::IncrementalDecoder stream(tokenizer, skip_special);
  json::array increments;
  for (const int32_t id : ids) {
    TARE_ASSIGN(const std::string piece, stream.push(id));
    increments.emplace_back(piece);
  }
  if (const std::string tail = stream.finish(); !tail.empty()) increments.emplace_back(tail);
  return json::object{{"text", std::move(text)}, {"increments", std::move(increments)}};
}

Result<json::object> decode_line(const text::Tokenizer& tokenizer, const json::object& line, const Options& options) {
  const json::value* array = json::find(line, "ids");
  if (!array) return invalid_input("'ids' is missing", {.where = "line", .expected = "an array"});
  TARE_ASSIGN(const std::vector<int32_t> ids, token_ids_of(*array, "line"));
  TARE_ASSIGN(const bool skip_special, json::get_bool_or(line, "skip_special", options.skip_special, "line"));
  return decode(tokenizer, ids, skip_special);
}

Status detokenize(Context& context, const Options& options) {
  if (options.ids.has_value() == !options.json_lines.empty()) {
    return invalid_input("what to detokenize?",
                         {.where = "tare detokenize", .expected = "one of --token-ids, --jsonl"});
  }
  TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(options.model));
  if (!options.json_lines.empty()) {
    return for_each_json_line(context, options.json_lines, {"ids", "skip_special"},
                              [&](const json::object& line) { return decode_line(tokenizer, line, options); });
  }
  TARE_ASSIGN(const std::vector<int32_t> ids, parse_token_ids(*options.ids, "--token-ids"));
  TARE_ASSIGN(const json::object document, decode(tokenizer, ids, options.skip_special));
  context.say(std::string_view(document.at("text").as_string()));
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kDetokenize;
const Command kDetokenize = {
    .name = "detokenize",
    .summary = "token ids to text, whole and piece by piece as a stream shows it",
    .examples =
        "tare detokenize model/ --token-ids 1,15043,3186\n"
        "tare detokenize tokenizer.json --jsonl ids.jsonl > texts.jsonl",
    .declare = [](CLI::App& app) -> Runner {
      auto options = std::make_shared<Options>();
      app.add_option("MODEL", options->model, "folder, tokenizer.json, tokenizer.model or .gguf")->required();
      app.add_option("--token-ids", options->ids, "the ids, with commas between them")->type_name("IDS");
      app.add_option("--jsonl", options->json_lines, "one {ids, skip_special} a line, one line out for each")
          ->type_name("F");
      app.add_flag("--skip-special,--no-special", options->skip_special, "leave control tokens out of the text");
      return [options](Context& context) { return detokenize(context, *options); };
    },
};

}  // namespace tare::cli
