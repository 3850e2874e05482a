#include "cli/model_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "base/log.h"
#include "base/progress.h"

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

Result<runtime::LoadedModel> open_model(Context& context, const std::string& path, const ModelFlags& flags,
                                        int64_t max_batch_tokens, int64_t context_tokens) {
  std::unique_ptr<Progress> progress;
  int64_t shown = 0;
  runtime::LoadOptions options{.format = flags.quantization,
                               .forced_kernel = context.options().kernel,
                               .int8_activations = context.options().activations == "int8",
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
  if (flags.calculate_kv_scales && !flags.kv_scale.empty()) {
    return invalid_input("two rules for KV scales", {.where = "--calculate-kv-scales", .hint = "drop --kv-scale"});
  }
  const kvcache::KvScaleRule rule = flags.calculate_kv_scales ? kvcache::KvScaleRule::kCalculate
                                    : flags.kv_scale == "one" ? kvcache::KvScaleRule::kOne
                                                              : kvcache::KvScaleRule::kCheckpoint;
  TARE_ASSIGN(kvcache::KvFormat fallback, kvcache::parse_kv_format(automatic, {}, rule));
  if (!model.kv.k_dtype.empty()) {
    const std::string said = model.kv.v_dtype.empty() ? model.kv.k_dtype : model.kv.k_dtype + "," + model.kv.v_dtype;
    TARE_ASSIGN(fallback, kvcache::parse_kv_format(said, fallback, rule));
  }
  model::AttentionCache::Options options{.block_size = flags.block_size};
  TARE_ASSIGN(options.format, kvcache::parse_kv_format(flags.kv_cache_dtype, fallback, rule));
  const model::Architecture& arch = model.transformer->architecture();
  if (!flags.kv_skip_layers.empty()) {
    TARE_ASSIGN(const kvcache::KvFormat plain, kvcache::parse_kv_format(automatic, {}, rule));
    options.layer_formats.assign(static_cast<size_t>(arch.layers), options.format);
    for (const int64_t layer : flags.kv_skip_layers) {
      if (layer >= arch.layers) {
        return invalid_input("no such layer", {.where = "--kv-cache-dtype-skip-layers",
                                               .expected = fmt::format("0 to {}", arch.layers - 1),
                                               .found = fmt::format("{}", layer)});
      }
      options.layer_formats[static_cast<size_t>(layer)] = plain;
    }
  }
  const bool fixed_fp8 = (kernels::is_fp8(options.format.k.type) && !options.format.k.scale_in_page) ||
                         (kernels::is_fp8(options.format.v.type) && !options.format.v.scale_in_page);
  if (rule == kvcache::KvScaleRule::kOne) {
    if (fixed_fp8) log::warn("fp8 KV cache with scale 1.0, as --kv-scale=one says");
    options.scales.assign(static_cast<size_t>(arch.layers), {{1.0f}, {1.0f}});
  } else {
    options.scales = model.kv_scales;
  }
  options.caps = context.capabilities();
  return options;
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
