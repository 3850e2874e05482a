#include "cli/model_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "base/log.h"
#include "base/progress.h"
#include "plugin/plugins.h"
#include "runtime/kv_settings.h"

namespace tare::cli {

void declare_model(CLI::App& app, ModelFlags& flags) {
  app.add_option("MODEL", flags.model, "Hugging Face directory, .gguf or .safetensors file")->required();
  app.add_option("--quantization", flags.quantization,
                 "insist on a checkpoint format (see `tare methods`); one that contradicts the file is refused");
}

void declare_kv_cache(CLI::App& app, ModelFlags& flags) {
  app.add_option("--kv-cache-dtype", flags.kv_cache_dtype,
                 "auto, f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int4; or K,V apart: int8,int4")
      ->capture_default_str();
  app.add_flag("--calculate-kv-scales", flags.calculate_kv_scales, "fp8 cache: scales per token and head, in the page");
  app.add_option("--kv-scale", flags.kv_scale, "fp8 cache without scales in the checkpoint: 'one' uses 1.0");
  add_list(app, "--kv-cache-dtype-skip-layers", flags.kv_skip_layers, "layers whose keys and values stay unquantized");
  app.add_option("--block-size", flags.block_size, "tokens of a KV block, a power of two")->capture_default_str();
}

model::ActivationPolicy activation_policy(const GlobalOptions& options) {
  return {.int8 = options.activations == "int8", .fp8 = options.activations == "fp8"};
}

Result<runtime::LoadedModel> open_model(Context& context, const std::string& path, const ModelFlags& flags,
                                        int64_t max_batch_tokens, int64_t context_tokens) {
  std::unique_ptr<Progress> progress;
  int64_t shown = 0;
  runtime::LoadOptions options{.format = flags.quantization,
                               .formats = &context.registries().formats,
                               .registry = context.registries().linear,
                               .forced_kernel = context.options().kernel,
                               .activations = activation_policy(context.options()),
                               .caps = context.capabilities(),
                               .max_batch_tokens = max_batch_tokens,
                               .context = context_tokens,
                               .budget = &context.memory(),
                               .progress = [&](int64_t done, int64_t total) {
                                 if (!progress)
                                   progress = std::make_unique<Progress>(context.progress(), "load", total, "layers");
                                 progress->advance(done - shown);
                                 shown = done;
                               }};
  TARE_ASSIGN(runtime::LoadedModel model, runtime::load_model(path, options, context.pool()));
  for (const std::string& note : model.notes) log::info("{}: {}", path, note);
  return model;
}

Result<model::AttentionCache::Options> cache_settings(const Context& context, const runtime::LoadedModel& model,
                                                      const ModelFlags& flags, std::string_view automatic) {
  if (!flags.kv_scale.empty() && flags.kv_scale != "one") {
    return invalid_input("unknown scale rule",
                         {.where = "--kv-scale", .expected = "one", .found = fmt::format("'{}'", flags.kv_scale)});
  }
  return runtime::kv_options(model,
                             {.dtype = flags.kv_cache_dtype,
                              .calculate_scales = flags.calculate_kv_scales,
                              .scale_one = flags.kv_scale == "one",
                              .skip_layers = flags.kv_skip_layers,
                              .block_size = flags.block_size,
                              .automatic = std::string(automatic)},
                             context.capabilities());
}

Result<ScoredModel> open_scored(Context& context, const std::string& path, const ModelFlags& flags,
                                int64_t context_tokens, int64_t batch_tokens) {
  TARE_ASSIGN(runtime::LoadedModel model, open_model(context, path, flags, batch_tokens, context_tokens));
  TARE_ASSIGN(const model::AttentionCache::Options cache, cache_settings(context, model, flags, "f32"));
  TARE_ASSIGN(runtime::Scorer scorer, runtime::Scorer::make(*model.transformer, cache, context_tokens, context.pool()));
  return ScoredModel{.model = std::move(model), .scorer = std::move(scorer)};
}

boost::json::array linear_records(const model::Transformer& transformer) {
  boost::json::array out;
  for (const model::LinearRecord& record : transformer.records()) {
    out.push_back({{"name", record.name},
                   {"n", record.n},
                   {"k", record.k},
                   {"weight", record.weight},
                   {"activation", record.activation},
                   {"kernel", record.kernel},
                   {"stored_bytes", record.stored_bytes}});
  }
  return out;
}

boost::json::array kernel_names(const model::Transformer& transformer) {
  std::set<std::string> names;
  for (const model::LinearRecord& record : transformer.records()) names.insert(record.kernel);
  return boost::json::array(names.begin(), names.end());
}

}  // namespace tare::cli
