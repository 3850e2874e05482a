#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <iostream>

#include "base/interrupt.h"
#include "cli/generate.h"

namespace tare::cli {

namespace {

struct Flags {
  GenerateFlags generate;
  std::string system;
};

constexpr const char* kHelp =
    "/help   this text\n"
    "/clear  forget the conversation\n"
    "/show   show the conversation as the model sees it\n"
    "/quit   leave (Ctrl-D does too); Ctrl-C stops an answer";

Status chat(Context& context, Flags& flags) {
  flags.generate.keep_engine = true;
  TARE_ASSIGN(ChatModel model, open_chat_model(context, flags.generate, true));
  boost::json::array messages;
  const auto start = [&] {
    messages.clear();
    if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  };
  start();
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) context.say("Type a message; /help shows what else can be typed.");
  for (std::string line;;) {
    if (terminal) context.stream("\n> ");
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/help") {
      context.say(kHelp);
    } else if (line == "/clear") {
      start();
    } else if (line == "/show") {
      context.say(boost::json::serialize(messages));
    } else if (line.front() == '/') {
      context.say("unknown command; /help lists them");
    } else {
      messages.push_back({{"role", "user"}, {"content", line}});
      TARE_ASSIGN(const std::vector<int32_t> ids, render_chat(model, messages));
      TARE_ASSIGN(const Answer answer, run_request(context, model, flags.generate, ids,
                                                   [&](std::string_view piece) { context.stream(piece); }));
      context.say("");
      messages.push_back({{"role", "assistant"}, {"content", answer.text}});
      if (answer.finish == runtime::FinishReason::kAborted) clear_interrupt();
    }
  }
  context.emit({{"messages", messages}});
  return {};
}

}  // namespace

extern const Command kChat;
const Command kChat = {
    .name = "chat",
    .summary = "talk with a model in the terminal",
    .examples = "tare chat model.gguf\ntare chat out/ --system \"Answer in one sentence.\" --temperature 0.7",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      flags->generate.params.max_tokens = 512;
      declare_generate(app, flags->generate);
      app.add_option("--system", flags->system, "system message");
      return [flags](Context& context) { return chat(context, *flags); };
    },
};

}  // namespace tare::cli
