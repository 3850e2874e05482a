#include "cli/engine_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <charconv>

#include "base/log.h"
#include "base/size_text.h"

namespace tare::cli {

namespace {

constexpr int64_t kLongest = int64_t{1} << 31;

Error length_error(const std::string& text) {
  return invalid_input("length of the context is out of range",
                       {.where = "--max-model-len",
                        .expected = fmt::format("2 to {}, as 4096, 4k or 4K, or auto", kLongest),
                        .found = fmt::format("'{}'", text)});
}

}  // namespace

void declare_engine(CLI::App& app, EngineFlags& flags) {
  app.add_option("--max-model-len", flags.max_model_len,
                 "longest sequence, prompt and answer: tokens, 4k, 4K, or auto = what fits the memory");
  app.add_option("--kv-cache-memory-bytes", flags.kv_cache_memory_bytes, "most memory for the KV cache, as 2GiB");
}

void declare_scheduling(CLI::App& app, EngineFlags& flags) {
  app.add_option("--max-num-seqs", flags.max_num_seqs, "sequences that run at a time")->capture_default_str();
  app.add_option("--max-num-batched-tokens", flags.max_num_batched_tokens,
                 "tokens of a step; auto = a step takes at most twice as long as one without prompts");
  app.add_option("--target-itl-ms", flags.target_itl_ms, "prompt chunks are cut so that a step takes about this long");
  app.add_flag("--no-enable-chunked-prefill", flags.no_chunked_prefill, "a prompt runs in one step");
  app.add_flag("--no-enable-prefix-caching", flags.no_prefix_caching, "compute every prompt anew");
  app.add_option("--scheduling-policy", flags.scheduling_policy, "fcfs or priority")->capture_default_str();
}

Result<int64_t> parse_model_len(const std::string& text, int64_t fallback) {
  if (text.empty()) return fallback;
  if (text == "auto") return kvcache::kFitMemory;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 0 || value > kLongest) return length_error(text);
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  if (suffix == "k")
    value *= 1000;
  else if (suffix == "K")
    value *= 1024;
  else if (!suffix.empty())
    return length_error(text);
  if (value < 2 || value > kLongest) return length_error(text);
  return value;
}

Result<int64_t> batched_tokens(const EngineFlags& flags) {
  constexpr int64_t kDefault = 512, kMost = 1 << 16;
  if (flags.max_num_batched_tokens.empty() || flags.max_num_batched_tokens == "auto") {
    return std::max(kDefault, flags.max_num_seqs);
  }
  int64_t value = 0;
  const std::string& text = flags.max_num_batched_tokens;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || value < 1 || value > kMost) {
    return invalid_input("tokens of a step are out of range", {.where = "--max-num-batched-tokens",
                                                               .expected = fmt::format("1 to {}, or auto", kMost),
                                                               .found = fmt::format("'{}'", text)});
  }
  return value;
}

Result<PlannedEngine> plan_engine(Context& context, const runtime::LoadedModel& model, const ModelFlags& model_flags,
                                  const EngineFlags& flags, int64_t longest) {
  if (flags.max_num_seqs < 1 || flags.max_num_seqs > 65536) {
    return invalid_input(
        "number of sequences is out of range",
        {.where = "--max-num-seqs", .expected = "1 to 65536", .found = fmt::format("{}", flags.max_num_seqs)});
  }
  if (!(flags.target_itl_ms >= 0)) {
    return invalid_input(
        "target is out of range",
        {.where = "--target-itl-ms", .expected = "at least 0", .found = fmt::format("{}", flags.target_itl_ms)});
  }
  PlannedEngine out;
  runtime::EngineOptions& options = out.options;
  options.max_num_seqs = flags.max_num_seqs;
  options.pace_steps = flags.max_num_batched_tokens == "auto";
  options.target_itl_s = flags.target_itl_ms / 1e3;
  options.chunked_prefill = !flags.no_chunked_prefill;
  options.prefix_caching = !flags.no_prefix_caching;
  options.model_key = model.path;
  TARE_ASSIGN(options.policy, runtime::parse_scheduling_policy(flags.scheduling_policy));
  TARE_ASSIGN(options.max_batched_tokens, batched_tokens(flags));
  TARE_ASSIGN(options.cache, cache_settings(context, model, model_flags, "f16"));
  runtime::EnginePlanRequest request{
      .cache = options.cache, .max_num_seqs = flags.max_num_seqs, .max_batched_tokens = options.max_batched_tokens};
  TARE_ASSIGN(request.max_model_len, parse_model_len(flags.max_model_len, longest));
  if (!flags.kv_cache_memory_bytes.empty()) {
    TARE_ASSIGN(const uint64_t bytes, parse_size(flags.kv_cache_memory_bytes, "--kv-cache-memory-bytes"));
    request.kv_cache_memory_bytes = static_cast<int64_t>(bytes);
  }
  if (const auto left = context.memory().available_bytes()) request.available_bytes = static_cast<int64_t>(*left);
  TARE_ASSIGN(out.plan, runtime::plan_engine(*model.transformer, request, context.threads()));
  options.cache.num_blocks = out.plan.capacity.num_blocks;
  options.max_model_len = out.plan.capacity.max_model_len;
  return out;
}

Result<ReadyEngine> make_engine(Context& context, const runtime::LoadedModel& model,
                                std::optional<text::Tokenizer> tokenizer, const ModelFlags& model_flags,
                                const EngineFlags& flags, const std::vector<int32_t>& end_ids, int64_t longest) {
  TARE_ASSIGN(PlannedEngine planned, plan_engine(context, model, model_flags, flags, longest));
  const runtime::EnginePlan& plan = planned.plan;
  TARE_ASSIGN(auto held, context.memory().reserve("KV cache and attention",
                                                  static_cast<uint64_t>(plan.capacity.kv_bytes + plan.step_bytes)));
  log::info("{}", plan.text());
  planned.options.end_ids = end_ids;
  TARE_ASSIGN(runtime::Engine engine,
              runtime::Engine::make(*model.transformer, std::move(tokenizer), planned.options, context.pool()));
  return ReadyEngine{std::move(held), std::move(planned.plan), std::move(engine)};
}

boost::json::object plan_json(const runtime::EnginePlan& plan) {
  return {{"kv_cache_dtype", plan.kv_format},
          {"capacity_tokens", plan.capacity.tokens()},
          {"num_blocks", plan.capacity.num_blocks},
          {"block_size", plan.capacity.block_size},
          {"max_model_len", plan.capacity.max_model_len},
          {"concurrency", plan.capacity.concurrency()},
          {"weights_bytes", plan.weights_bytes},
          {"kv_bytes", plan.capacity.kv_bytes},
          {"kv_bytes_per_token", plan.capacity.bytes_per_token},
          {"workspace_bytes", plan.workspace_bytes + plan.step_bytes}};
}

}  // namespace tare::cli
