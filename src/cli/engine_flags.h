#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "runtime/engine.h"
#include "runtime/engine_plan.h"
#include "text/tokenizer.h"

namespace tare::cli {

/// Flags of every command that runs an engine (names and meanings as in `tare serve`).
struct EngineFlags {
  std::string max_model_len;          // tokens, with suffix k or K, or auto; empty = the command's own default
  std::string kv_cache_memory_bytes;  // size
  int64_t max_num_seqs = 1;
  std::string max_num_batched_tokens;  // tokens, or auto; empty = 512
  double target_itl_ms = 0;
  bool no_chunked_prefill = false;
  bool no_prefix_caching = false;
  std::string scheduling_policy = "fcfs";
};
/// The flags of one request at a time.
void declare_engine(CLI::App& app, EngineFlags& flags);
/// The others, for commands that run many.
void declare_scheduling(CLI::App& app, EngineFlags& flags);

/// Tokens of --max-model-len: a number with suffix k (1000) or K (1024), kvcache::kFitMemory for auto, `fallback` when
/// empty. Errors: anything else.
Result<int64_t> parse_model_len(const std::string& text, int64_t fallback);
/// Tokens of the workspace that the transformer needs for the flags.
Result<int64_t> batched_tokens(const EngineFlags& flags);

/// What the flags ask for, before anything is allocated. longest: --max-model-len when the flag is empty; 0 = what the
/// model was made for. Errors: flags out of range or in contradiction; what does not fit, with the numbers.
struct PlannedEngine {
  runtime::EngineOptions options;
  runtime::EnginePlan plan;
};
Result<PlannedEngine> plan_engine(Context& context, const runtime::LoadedModel& model, const ModelFlags& model_flags,
                                  const EngineFlags& flags, int64_t longest);

/// An engine with the memory it holds. The plan is logged.
struct ReadyEngine {
  MemoryBudget::Reservation held;
  runtime::EnginePlan plan;
  runtime::Engine engine;
};
Result<ReadyEngine> make_engine(Context& context, const runtime::LoadedModel& model,
                                std::optional<text::Tokenizer> tokenizer, const ModelFlags& model_flags,
                                const EngineFlags& flags, const std::vector<int32_t>& end_ids, int64_t longest);

/// The plan as JSON: capacity_tokens, num_blocks, concurrency, weights_bytes, kv_bytes, ...
boost::json::object plan_json(const runtime::EnginePlan& plan);

}  // namespace tare::cli
