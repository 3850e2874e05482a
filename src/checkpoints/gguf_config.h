#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoints/gguf_architectures.h"
#include "io/gguf.h"

namespace tare::checkpoints {

/// A GGUF's metadata as the configuration of the same model in a Hugging Face directory.
struct GgufModel {
  GgufArchitecture architecture;
  json::object config;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t experts = 0;
};

/// files: the parts of one model, the first with the metadata. Tensors that are configuration (rotary factors) become
/// "rope_scaling" of type longrope. Decisions go to notes.
/// Errors: a missing, unknown or contradicting key; an architecture that is not supported.
Result<GgufModel> read_gguf_model(const std::vector<io::GgufFile>& files, std::vector<std::string>& notes);

/// rope_freqs.weight and the like: read as configuration, not as weights.
bool is_gguf_config_tensor(std::string_view name);

}  // namespace tare::checkpoints
