#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/model_flags.h"
#include "runtime/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tare::cli {

/// What `generate` and `chat` share.
struct GenerateFlags {
  ModelFlags model;
  runtime::SamplingParams params{.temperature = 0, .max_tokens = 128};
  EngineFlags engine;
  bool keep_engine = false;  // one engine for all requests, so that a conversation is found in its cache
};
void declare_generate(CLI::App& app, GenerateFlags& flags);

/// A model with its text side.
struct ChatModel {
  runtime::LoadedModel loaded;
  std::optional<text::Tokenizer> tokenizer;  // none: token ids in and out only
  std::optional<text::ChatTemplate> chat_template;
  std::map<std::string, std::string> special_tokens;
  std::vector<int32_t> end_ids;
  std::optional<ReadyEngine> engine;  // of the last request; kept when flags.keep_engine
};
/// needs_text: a model without a tokenizer is an error; otherwise it is said and texts stay empty.
Result<ChatModel> open_chat_model(Context& context, const GenerateFlags& flags, bool needs_text);

/// Token ids of a conversation with the generation prompt. Errors: no chat template; what the template says.
Result<std::vector<int32_t>> render_chat(const ChatModel& model, const boost::json::array& messages);

struct Answer {
  std::vector<runtime::Sample> samples;
  std::string text;
  runtime::FinishReason finish = runtime::FinishReason::kLength;
  std::string stop_reason;
  int64_t cached_tokens = 0;        // of the prompt
  double prefill_tokens_per_s = 0;  // computed ones
  double decode_tokens_per_s = 0;
  double ttft_ms = 0;
  runtime::EnginePlan plan;
};
/// Runs one request to its end; `piece` gets the text as it comes. Ctrl-C ends the answer (finish kAborted).
Result<Answer> run_request(Context& context, ChatModel& model, const GenerateFlags& flags,
                           const std::vector<int32_t>& prompt, const std::function<void(std::string_view)>& piece);

}  // namespace tare::cli
