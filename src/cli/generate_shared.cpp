#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>

#include "base/checked.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "checkpoints/text_assets.h"
#include "cli/generate.h"
#include "kvcache/kv_format.h"
#include "runtime/end_ids.h"
#include "runtime/token_roles.h"

namespace tare::cli {

void declare_generate(CLI::App& app, GenerateFlags& flags) {
  runtime::SamplingParams& p = flags.params;
  declare_model(app, flags.model);
  declare_kv_cache(app, flags.model);
  app.add_option("--max-tokens", p.max_tokens, "at most this many new tokens")->capture_default_str();
  app.add_option("--min-tokens", p.min_tokens, "no end before this many tokens")->capture_default_str();
  app.add_option("--temperature", p.temperature, "0 = always the most likely token")->capture_default_str();
  app.add_option("--top-k", p.top_k, "draw from this many most likely tokens (0 = all)")->capture_default_str();
  app.add_option("--top-p", p.top_p, "draw from the most likely tokens that make up this probability")
      ->capture_default_str();
  app.add_option("--min-p", p.min_p, "draw from tokens at least this likely relative to the best")
      ->capture_default_str();
  app.add_option("--presence-penalty", p.presence_penalty)->capture_default_str();
  app.add_option("--frequency-penalty", p.frequency_penalty)->capture_default_str();
  app.add_option("--repetition-penalty", p.repetition_penalty)->capture_default_str();
  add_repeated(app, "--stop", p.stop, "end the text at this string (may be repeated)");
  app.add_flag("--ignore-eos", p.ignore_eos, "do not end at an end token");
  app.add_option("--logprobs", p.logprobs, "log-probabilities of the chosen and the K best tokens");
  declare_engine(app, flags.engine);
}

Result<ChatModel> open_chat_model(Context& context, const GenerateFlags& flags, bool needs_text) {
  ChatModel out;
  Result<text::Tokenizer> tokenizer = checkpoints::load_tokenizer(flags.model.model);
  if (!tokenizer.ok() && needs_text) return std::move(tokenizer).error();
  if (tokenizer.ok()) {
    out.tokenizer = std::move(tokenizer).value();
    for (const std::string& warning : out.tokenizer->warnings()) log::warn("{}", warning);
    TARE_ASSIGN(std::optional<checkpoints::ChatAssets> chat, checkpoints::load_chat_template(flags.model.model));
    if (chat) {
      for (const std::string& note : chat->notes) log::info("{}", note);
      out.chat_template = std::move(chat->chat_template);
      out.special_tokens = std::move(chat->special_tokens);
    }
  } else {
    log::warn("no text: {}", tokenizer.error().message());
  }
  // What is wrong in the flags is said before a model is loaded.
  TARE_ASSIGN(const int64_t length, parse_model_len(flags.engine.max_model_len, 0));
  TARE_ASSIGN(out.loaded, open_model(context, flags.model.model, flags.model, 512, std::max<int64_t>(length, 0)));
  TARE_ASSIGN(runtime::EndIds ends,
              runtime::end_ids(flags.model.model, out.loaded.config, out.tokenizer ? &*out.tokenizer : nullptr,
                               out.loaded.transformer->architecture().vocab_size));
  for (const std::string& note : ends.notes) log::info("{}", note);
  TARE_ASSIGN(
      const std::vector<std::string> contradictions,
      runtime::token_contradictions(flags.model.model, out.loaded.config, out.tokenizer ? &*out.tokenizer : nullptr,
                                    out.loaded.transformer->architecture().vocab_size));
  for (const std::string& text : contradictions) log::warn("{}", text);
  out.end_ids = std::move(ends.ids);
  return out;
}

Result<std::vector<int32_t>> render_chat(const ChatModel& model, const boost::json::array& messages) {
  if (!model.chat_template) {
    return invalid_input("model has no chat template",
                         {.where = model.loaded.path, .hint = "leave --chat out to continue plain text"});
  }
  const text::ChatTemplateInput input{.messages = &messages, .special_tokens = model.special_tokens};
  TARE_ASSIGN(const std::string text, model.chat_template->render(input));
  TARE_ASSIGN(const text::Encoding encoded, model.tokenizer->encode(text, {.add_special = false}));
  return std::vector<int32_t>(encoded.ids.begin(), encoded.ids.end());
}

Result<Answer> run_request(Context& context, ChatModel& model, const GenerateFlags& flags,
                           const std::vector<int32_t>& prompt, const std::function<void(std::string_view)>& piece) {
  using Clock = std::chrono::steady_clock;
  const int64_t trained = model.loaded.transformer->architecture().max_positions;
  if (!flags.params.stop.empty() && !model.tokenizer) {
    return invalid_input("a stop string needs a tokenizer, and the model has none", {.where = "--stop"});
  }
  TARE_TRY(runtime::check(flags.params, model.loaded.transformer->architecture().vocab_size));
  if (!model.engine || !flags.keep_engine) {
    // As long as the request may become, so that little memory is enough; a conversation grows as far as memory allows.
    const int64_t wanted = static_cast<int64_t>(prompt.size()) + std::min(flags.params.max_tokens, trained);
    const int64_t longest = flags.keep_engine ? kvcache::kFitMemory : std::max<int64_t>(2, std::min(wanted, trained));
    model.engine.reset();
    TARE_ASSIGN(ReadyEngine made,
                make_engine(context, model.loaded, model.tokenizer, flags.model, flags.engine, model.end_ids, longest));
    model.engine.emplace(std::move(made));
  }
  ReadyEngine& ready = *model.engine;
  runtime::Engine& engine = ready.engine;
  runtime::SamplingParams params = flags.params;
  params.seed = context.options().seed.value_or(0);
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  TARE_ASSIGN(const runtime::RequestId id, engine.submit({.prompt = prompt, .params = params}));
  Answer answer{.plan = ready.plan};
  while (!engine.idle()) {
    if (interrupted()) engine.cancel(id);
    TARE_ASSIGN(std::vector<runtime::Event> events, engine.step());
    for (runtime::Event& event : events) {
      if (answer.samples.empty() && !event.tokens.empty()) first = Clock::now();
      std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(answer.samples));
      answer.text += event.text;
      if (!event.text.empty()) piece(event.text);
      if (event.error) return std::move(*event.error);
      if (event.finish) {
        answer.finish = *event.finish;
        answer.stop_reason = event.stop_reason;
        answer.cached_tokens = event.cached_tokens;
      }
    }
  }
  if (model.tokenizer) {
    const auto known = static_cast<int64_t>(model.tokenizer->vocab_size());
    const auto beyond = std::count_if(answer.samples.begin(), answer.samples.end(),
                                      [&](const runtime::Sample& sample) { return sample.id >= known; });
    if (beyond > 0) log::warn("{} tokens have no text: their ids are above the tokenizer's {}", beyond, known - 1);
  }
  const double prefill_s = std::chrono::duration<double>(first - start).count();
  const double decode_s = std::chrono::duration<double>(Clock::now() - first).count();
  answer.ttft_ms = 1e3 * prefill_s;
  const auto computed = static_cast<double>(prompt.size()) - static_cast<double>(answer.cached_tokens);
  answer.prefill_tokens_per_s = prefill_s > 0 ? computed / prefill_s : 0;
  // The first token belongs to the prefill.
  if (answer.samples.size() > 1 && decode_s > 0) {
    answer.decode_tokens_per_s = static_cast<double>(answer.samples.size() - 1) / decode_s;
  }
  return answer;
}

}  // namespace tare::cli
