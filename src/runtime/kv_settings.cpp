#include "runtime/kv_settings.h"

#include <fmt/format.h>

#include "base/log.h"

namespace tare::runtime {

namespace {

bool needs_static_scales(const kernels::KvForm& form) {
  return kernels::is_fp8(form.type) && !form.scale_in_page;
}

}  // namespace

Result<model::AttentionCache::Options> kv_options(const LoadedModel& model, const KvSettings& settings,
                                                  const machine::Capabilities& caps) {
  if (settings.calculate_scales && settings.scale_one) {
    return invalid_input("two rules for KV scales", {.where = "--calculate-kv-scales", .hint = "drop --kv-scale"});
  }
  const kvcache::KvScaleRule rule = settings.calculate_scales ? kvcache::KvScaleRule::kCalculate
                                    : settings.scale_one      ? kvcache::KvScaleRule::kOne
                                                              : kvcache::KvScaleRule::kCheckpoint;
  TARE_ASSIGN(const kvcache::KvFormat plain, kvcache::parse_kv_format(settings.automatic, {}, rule));
  kvcache::KvFormat fallback = plain;
  if (!model.kv.k_dtype.empty()) {
    const std::string said = model.kv.v_dtype.empty() ? model.kv.k_dtype : model.kv.k_dtype + "," + model.kv.v_dtype;
    TARE_ASSIGN(fallback, kvcache::parse_kv_format(said, fallback, rule));
  }
  model::AttentionCache::Options options{.block_size = settings.block_size, .caps = caps};
  TARE_ASSIGN(options.format, kvcache::parse_kv_format(settings.dtype, fallback, rule));
  const auto layers = static_cast<size_t>(model.transformer->architecture().layers);
  if (!settings.skip_layers.empty()) options.layer_formats.assign(layers, options.format);
  for (const int64_t layer : settings.skip_layers) {
    if (layer < 0 || static_cast<size_t>(layer) >= layers) {
      return invalid_input("no such layer", {.where = "--kv-cache-dtype-skip-layers",
                                             .expected = fmt::format("0 to {}", layers - 1),
                                             .found = fmt::format("{}", layer)});
    }
    options.layer_formats[static_cast<size_t>(layer)] = plain;
  }
  if (rule == kvcache::KvScaleRule::kOne) {
    if (needs_static_scales(options.format.k) || needs_static_scales(options.format.v)) {
      log::warn("fp8 KV cache with scale 1.0, as --kv-scale=one says");
    }
    options.scales.assign(layers, {{1.0f}, {1.0f}});
  } else {
    options.scales = model.kv_scales;
  }
  return options;
}

}  // namespace tare::runtime
