#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/json.h"
#include "base/log.h"
#include "checkpoints/text_assets.h"
#include "cli/command.h"
#include "cli/json_lines.h"
#include "text/chat_template.h"

namespace tare::cli {

namespace {

using Failure = text::ChatTemplateFailure;

struct Options {
  std::string model;
  std::string template_file;
  std::string messages_file;
  std::string tools_file;
  std::string kwargs;
  std::vector<std::string> special;
  std::string now;
  std::string json_lines;
  bool no_generation_prompt = false;
};

// What all conversations of one run share.
struct Setup {
  std::map<std::string, text::ChatTemplate> templates;  // "default", "tool_use"
  std::optional<text::Tokenizer> tokenizer;
  std::map<std::string, std::string> special_tokens;
  std::optional<text::CivilTime> now;
};

struct Conversation {
  json::array messages;
  std::optional<json::value> tools;
  std::optional<json::value> documents;
  json::object kwargs;
  bool add_generation_prompt = true;
};

Result<text::CivilTime> parse_time(std::string_view text) {
  const Error wrong = invalid_input(
      "wrong time",
      {.where = "--now", .expected = "a time as 2025-03-14T15:09:26", .found = fmt::format("'{}'", text)});
  if (text.size() != 19 || (text[10] != 'T' && text[10] != ' ')) return wrong;
  text::CivilTime time;
  struct Field {
    size_t at, length;
    int low, high;
    int* value;
    char after;
  };
  const Field fields[] = {{0, 4, 1, 9999, &time.year, '-'},  {5, 2, 1, 12, &time.month, '-'},
                          {8, 2, 1, 31, &time.day, '\0'},    {11, 2, 0, 23, &time.hour, ':'},
                          {14, 2, 0, 59, &time.minute, ':'}, {17, 2, 0, 59, &time.second, '\0'}};
  for (const Field& field : fields) {
    const char* begin = text.data() + field.at;
    const auto parsed = std::from_chars(begin, begin + field.length, *field.value);
    if (parsed.ec != std::errc() || parsed.ptr != begin + field.length) return wrong;
    if (*field.value < field.low || *field.value > field.high) return wrong;
    if (field.after != '\0' && text[field.at + field.length] != field.after) return wrong;
  }
  return time;
}

std::string_view kind_name(Failure::Kind kind) {
  switch (kind) {
    case Failure::Kind::kSyntax:
      return "syntax";
    case Failure::Kind::kRaised:
      return "raise_exception";
    case Failure::Kind::kFailed:
      return "template";
    case Failure::Kind::kLimit:
      return "limit";
  }
  return "template";
}

Result<Setup> prepare(const Options& options) {
  Setup setup;
  if (!options.model.empty()) {
    TARE_ASSIGN(const auto assets, checkpoints::load_chat_template(options.model));
    if (assets) {
      for (const std::string& note : assets->notes) log::info("{}", note);
      setup.special_tokens = assets->special_tokens;
    }
    if (options.template_file.empty()) {
      if (!assets) {
        return invalid_input("this model has no chat template",
                             {.where = options.model, .hint = "give one with --template F.jinja"});
      }
      setup.templates.emplace("default", assets->chat_template);
      // Some models keep a second template for conversations with tools, and Hugging Face's tools then take that one.
      const auto with_tools = checkpoints::load_chat_template(options.model, "tool_use");
      if (with_tools.ok() && *with_tools) setup.templates.emplace("tool_use", (*with_tools)->chat_template);
      if (!with_tools.ok()) log::debug("{}", with_tools.error().message());
    }
    auto tokenizer = checkpoints::load_tokenizer(options.model);
    if (tokenizer.ok())
      setup.tokenizer = *std::move(tokenizer);
    else
      log::warn("no ids: {}", tokenizer.error().message());
  }
  if (!options.template_file.empty()) {
    TARE_ASSIGN(const std::string source, read_input(options.template_file));
    TARE_ASSIGN(auto parsed, text::ChatTemplate::parse(source, options.template_file));
    setup.templates.emplace("default", std::move(parsed));
  }
  for (const std::string& pair : options.special) {
    const size_t equals = pair.find('=');
    if (equals == pair.npos || equals == 0) {
      return invalid_input("wrong special token",
                           {.where = "--special", .expected = "NAME=TEXT, as bos_token=<s>", .found = pair});
    }
    setup.special_tokens[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  if (!options.now.empty()) {
    TARE_ASSIGN(setup.now, parse_time(options.now));
  }
  return setup;
}

// Errors carry the template's own words in `failure` when the template refused.
Result<json::object> render(const Setup& setup, const Conversation& conversation, Failure& failure) {
  text::ChatTemplateInput input;
  input.messages = &conversation.messages;
  input.tools = conversation.tools ? &*conversation.tools : nullptr;
  input.documents = conversation.documents ? &*conversation.documents : nullptr;
  input.kwargs = &conversation.kwargs;
  input.add_generation_prompt = conversation.add_generation_prompt;
  input.special_tokens = setup.special_tokens;
  input.now = setup.now;
  const auto with_tools = setup.templates.find("tool_use");
  const auto& chosen =
      input.tools && with_tools != setup.templates.end() ? with_tools->second : setup.templates.at("default");
  TARE_ASSIGN(std::string text, chosen.render(input, &failure));
  json::object out;
  if (setup.tokenizer) {
    // The template writes its control tokens itself, so nothing is added around them.
    TARE_ASSIGN(const text::Encoding encoding, setup.tokenizer->encode(text, {.add_special = false}));
    out["ids"] = json::array(encoding.ids.begin(), encoding.ids.end());
  }
  out["text"] = std::move(text);
  return out;
}

json::object failure_document(const Failure& failure, const Error& error) {
  const std::string message = failure.message.empty() ? error.message() : failure.message;
  return {{"error", message}, {"error_kind", kind_name(failure.kind)}, {"line", failure.line}};
}

Result<Conversation> read_conversation(json::value messages, const json::value* tools, const json::object& kwargs,
                                       const std::string& where) {
  Conversation out;
  if (!messages.is_array()) return invalid_input("wrong messages", {.where = where, .expected = "a JSON array"});
  out.messages = std::move(messages.get_array());
  if (tools && !tools->is_null()) out.tools = *tools;
  for (const auto& member : kwargs) {
    if (member.key() == "documents") {
      if (!member.value().is_null()) out.documents = member.value();
    } else {
      out.kwargs[member.key()] = member.value();
    }
  }
  return out;
}

Result<json::object> parse_object(std::string_view text, const std::string& where) {
  TARE_ASSIGN(json::value parsed, json::parse(text, where));
  if (!parsed.is_object()) return invalid_input("wrong value", {.where = where, .expected = "a JSON object"});
  return std::move(parsed.get_object());
}

Result<json::object> render_line(const Setup& setup, const json::object& line, const Options& options) {
  const json::value* messages = json::find(line, "messages");
  if (!messages) return invalid_input("'messages' is missing", {.where = "line", .expected = "an array"});
  json::object kwargs;
  if (!options.kwargs.empty()) {
    TARE_ASSIGN(kwargs, parse_object(options.kwargs, "--kwargs"));
  }
  if (const json::value* own = json::find(line, "kwargs")) {
    if (!own->is_object()) return invalid_input("wrong kwargs", {.where = "line", .expected = "an object"});
    for (const auto& member : own->get_object()) kwargs[member.key()] = member.value();
  }
  TARE_ASSIGN(Conversation conversation, read_conversation(*messages, json::find(line, "tools"), kwargs, "line"));
  TARE_ASSIGN(conversation.add_generation_prompt,
              json::get_bool_or(line, "add_generation_prompt", !options.no_generation_prompt, "line"));
  Failure failure;
  const auto rendered = render(setup, conversation, failure);
  return rendered.ok() ? *rendered : failure_document(failure, rendered.error());
}

Result<Conversation> conversation_of_flags(const Options& options) {
  TARE_ASSIGN(const std::string messages_text, read_input(options.messages_file));
  TARE_ASSIGN(json::value messages, json::parse(messages_text, options.messages_file));
  json::value tools;
  if (!options.tools_file.empty()) {
    TARE_ASSIGN(tools, json::parse_file(options.tools_file));
  }
  json::object kwargs;
  if (!options.kwargs.empty()) {
    TARE_ASSIGN(kwargs, parse_object(options.kwargs, "--kwargs"));
  }
  TARE_ASSIGN(Conversation out, read_conversation(std::move(messages), &tools, kwargs, options.messages_file));
  out.add_generation_prompt = !options.no_generation_prompt;
  return out;
}

Status render_template(Context& context, const Options& options) {
  if (options.model.empty() && options.template_file.empty()) {
    return invalid_input("which template?", {.where = "tare template", .expected = "MODEL or --template F.jinja"});
  }
  if (options.messages_file.empty() == options.json_lines.empty()) {
    return invalid_input("what to render?", {.where = "tare template", .expected = "one of --messages, --jsonl"});
  }
  TARE_ASSIGN(const Setup setup, prepare(options));
  if (!options.json_lines.empty()) {
    return for_each_json_line(context, options.json_lines, {"messages", "tools", "kwargs", "add_generation_prompt"},
                              [&](const json::object& line) { return render_line(setup, line, options); });
  }
  TARE_ASSIGN(const Conversation conversation, conversation_of_flags(options));
  Failure failure;
  const auto rendered = render(setup, conversation, failure);
  if (!rendered.ok()) {
    context.emit(failure_document(failure, rendered.error()));
    return rendered.error();
  }
  context.stream(std::string_view(rendered->at("text").as_string()));
  context.emit(*rendered);
  return {};
}

}  // namespace

extern const Command kTemplate;
const Command kTemplate = {
    .name = "template",
    .summary = "render a conversation with a chat template, exactly as the model will see it",
    .examples =
        "tare template model/ --messages chat.json\n"
        "tare template --template chat.jinja --messages chat.json --special 'bos_token=<s>'\n"
        "tare template model.gguf --jsonl chats.jsonl > prompts.jsonl",
    .declare = [](CLI::App& app) -> Runner {
      auto options = std::make_shared<Options>();
      app.add_option("MODEL", options->model, "folder or .gguf: its template, special tokens and ids");
      app.add_option("--template", options->template_file, "this template instead of the model's")->type_name("F");
      app.add_option("--messages", options->messages_file, "a JSON array of messages; - is standard input")
          ->type_name("F");
      app.add_option("--tools", options->tools_file, "a JSON array of tools")->type_name("F");
      app.add_option("--kwargs", options->kwargs, "further variables, a JSON object")->type_name("JSON");
      add_repeated(app, "--special", options->special, "a special token, as bos_token=<s> (may be repeated)");
      app.add_option("--now", options->now, "the time that strftime_now sees, as 2025-03-14T15:09:26")
          ->type_name("TIME");
      app.add_option("--jsonl", options->json_lines,
                     "one {messages, tools, kwargs, add_generation_prompt} a line, one line out for each")
          ->type_name("F");
      app.add_flag("--no-generation-prompt", options->no_generation_prompt, "do not open the assistant's turn");
      return [options](Context& context) { return render_template(context, *options); };
    },
};

}  // namespace tare::cli
