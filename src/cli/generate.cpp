#include "cli/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>

#include "base/checked.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "checkpoints/text_assets.h"
#include "cli/command.h"
#include "cli/eval_flags.h"
#include "runtime/end_ids.h"

namespace tare::cli {

namespace {

struct Flags {
  GenerateFlags generate;
  std::string prompt, prompt_file, token_ids, system;
  bool chat = false;
};

Result<std::vector<int32_t>> prompt_ids(Flags& flags, const ChatModel& model) {
  const int sources = !flags.prompt.empty() + !flags.prompt_file.empty() + !flags.token_ids.empty();
  if (sources != 1) {
    return invalid_input("prompt is not clear", {.where = "--prompt, --prompt-file, --token-ids",
                                                 .expected = "exactly one of them",
                                                 .found = fmt::format("{}", sources)});
  }
  if (!flags.token_ids.empty()) return parse_token_ids(flags.token_ids, "--token-ids");
  std::string text = flags.prompt;
  if (!flags.prompt_file.empty()) {
    TARE_ASSIGN(text, read_text_file(flags.prompt_file));
  }
  if (!flags.chat && flags.system.empty()) {
    TARE_ASSIGN(const text::Encoding encoded, model.tokenizer->encode(text, {.specials_as_text = true}));
    return std::vector<int32_t>(encoded.ids.begin(), encoded.ids.end());
  }
  boost::json::array messages;
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return render_chat(model, messages);
}

boost::json::array logprob_array(const std::vector<runtime::Sample>& samples) {
  boost::json::array out;
  for (const runtime::Sample& sample : samples) {
    boost::json::array top;
    for (const runtime::TokenLogprob& one : sample.top) top.push_back({{"id", one.id}, {"logprob", one.logprob}});
    out.push_back({{"id", sample.id}, {"logprob", sample.logprob}, {"top", std::move(top)}});
  }
  return out;
}

Status generate(Context& context, Flags& flags) {
  TARE_ASSIGN(ChatModel model, open_chat_model(context, flags.generate, flags.token_ids.empty()));
  TARE_ASSIGN(const std::vector<int32_t> ids, prompt_ids(flags, model));
  TARE_ASSIGN(const Answer answer,
              run_request(context, model, flags.generate, ids, [&](std::string_view piece) { context.stream(piece); }));
  context.say("");
  context.say(fmt::format("\n{} prompt tokens at {:.1f} tokens/s, {} tokens at {:.1f} tokens/s, peak memory {:.0f} MiB",
                          ids.size(), answer.prefill_tokens_per_s, answer.samples.size(), answer.decode_tokens_per_s,
                          static_cast<double>(peak_rss_bytes()) / (1 << 20)));
  boost::json::array tokens;
  for (const runtime::Sample& sample : answer.samples) tokens.push_back(sample.id);
  context.emit(
      {{"text", answer.text},
       {"prompt_token_ids", boost::json::array(ids.begin(), ids.end())},
       {"token_ids", std::move(tokens)},
       {"finish_reason", runtime::finish_reason_name(answer.finish)},
       {"stop_reason", answer.stop_reason.empty() ? boost::json::value() : boost::json::value(answer.stop_reason)},
       {"logprobs",
        flags.generate.params.logprobs >= 0 ? boost::json::value(logprob_array(answer.samples)) : boost::json::value()},
       {"timing",
        {{"prefill_tokens_per_s", answer.prefill_tokens_per_s},
         {"decode_tokens_per_s", answer.decode_tokens_per_s},
         {"ttft_ms", answer.ttft_ms}}},
       {"memory",
        {{"weights_bytes", model.loaded.transformer->packed_bytes()},
         {"kv_bytes", answer.plan.capacity.kv_bytes},
         {"peak_rss_bytes", peak_rss_bytes()}}},
       {"kernels", kernel_names(*model.loaded.transformer)},
       {"linears", linear_records(*model.loaded.transformer)},
       {"kv_cache_dtype", answer.plan.kv_format},
       {"engine", plan_json(answer.plan)},
       {"notes", boost::json::array(model.loaded.notes.begin(), model.loaded.notes.end())}});
  // What was said so far stands in the document; the exit code tells that it is not all.
  if (answer.finish == runtime::FinishReason::kAborted) {
    return make_error(ErrorKind::kInterrupted, "interrupted", {.where = "generate"});
  }
  return {};
}

}  // namespace

extern const Command kGenerate;
const Command kGenerate = {
    .name = "generate",
    .summary = "continue a text, or answer one chat message",
    .examples =
        "tare generate model.gguf --prompt \"The capital of France is\" --max-tokens 32\n"
        "tare generate out/ --chat --prompt \"Why is the sky blue?\" --temperature 0\n"
        "tare generate out/ --token-ids 504,3575,282 --max-tokens 8 --logprobs 5 --json",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      declare_generate(app, flags->generate);
      app.add_option("--prompt", flags->prompt, "text to continue");
      app.add_option("--prompt-file", flags->prompt_file, "file with the text to continue");
      app.add_option("--token-ids", flags->token_ids, "token ids instead of text, separated by commas");
      app.add_flag("--chat", flags->chat, "the prompt is a chat message: apply the model's chat template");
      app.add_option("--system", flags->system, "system message (implies --chat)");
      return [flags](Context& context) { return generate(context, *flags); };
    },
};

}  // namespace tare::cli
