#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "machine/isa.h"
#include "model/attention_cache.h"
#include "runtime/load.h"

namespace tare::runtime {

/// What a user asks of the KV cache.
struct KvSettings {
  std::string dtype = "auto";  // one name, or "K,V"
  bool calculate_scales = false;
  bool scale_one = false;            // --kv-scale=one
  std::vector<int64_t> skip_layers;  // stay `automatic`
  int64_t block_size = 16;
  std::string automatic = "f16";  // what "auto" means when the checkpoint says nothing
};

/// The cache of a model: format, formats of skipped layers, static scales. num_blocks is left open. Warns when scales
/// of 1.0 are used. Errors: unknown names; two rules for scales; no such layer.
Result<model::AttentionCache::Options> kv_options(const LoadedModel& model, const KvSettings& settings,
                                                  const machine::Capabilities& caps);

}  // namespace tare::runtime
