#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"
#include "model/attention_cache.h"
#include "runtime/load.h"
#include "runtime/scorer.h"

namespace tare::cli {

/// Flags of every command that runs a model.
struct ModelFlags {
  std::string model;
  std::string quantization;  // --quantization
  std::string kv_cache_dtype = "auto";
  bool calculate_kv_scales = false;
  std::string kv_scale;  // "one"
  std::vector<int64_t> kv_skip_layers;
  int64_t block_size = 16;
};

void declare_model(CLI::App& app, ModelFlags& flags);     // the positional MODEL and --quantization
void declare_kv_cache(CLI::App& app, ModelFlags& flags);  // --kv-cache-dtype and its company

/// What --activations asks for. FP8 activations of a checkpoint are left in f32 unless it says fp8: no CPU has FP8
/// units.
model::ActivationPolicy activation_policy(const GlobalOptions& options);

/// Opens `path` with the global flags; shows progress; logs every note. context 0 = what the model was made for.
Result<runtime::LoadedModel> open_model(Context& context, const std::string& path, const ModelFlags& flags,
                                        int64_t max_batch_tokens, int64_t context_tokens);

/// The KV cache settings of the flags for a loaded model. `automatic` is what "auto" means when the checkpoint says
/// nothing.
Result<model::AttentionCache::Options> cache_settings(const Context& context, const runtime::LoadedModel& model,
                                                      const ModelFlags& flags, std::string_view automatic);

/// A model with a scorer over its own cache.
struct ScoredModel {
  runtime::LoadedModel model;
  runtime::Scorer scorer;
};
/// Opens `path` to score lists of at most context_tokens tokens, `batch_tokens` at a time. "auto" is an f32 cache.
Result<ScoredModel> open_scored(Context& context, const std::string& path, const ModelFlags& flags,
                                int64_t context_tokens, int64_t batch_tokens = 128);

/// [{name, n, k, weight, activation, kernel, stored_bytes}] and the run's kernel names, each once.
boost::json::array linear_records(const model::Transformer& transformer);
boost::json::array kernel_names(const model::Transformer& transformer);

}  // namespace tare::cli
