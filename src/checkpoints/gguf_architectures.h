#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoints/gguf_metadata.h"

namespace tare::checkpoints {

/// A tensor name of llama.cpp and the Hugging Face name it stands for, both without ".weight" or ".bias".
struct GgufName {
  std::string_view gguf;
  std::string_view hf;
};

/// How llama.cpp's converter wrote one model family.
struct GgufArchitecture {
  std::string_view name;         // general.architecture
  std::string_view model_type;   // of config.json
  std::string_view model_class;  // "architectures" of config.json
  bool permuted_qk = false;      // rows of q and k interleaved for rotary pairs (2i, 2i+1)
  bool norm_plus_one = false;    // norms are stored as 1 + w
  std::vector<GgufName> layer;   // "blk.{i}.<gguf>" -> "model.layers.{i}.<hf>"; "{e}" in hf: one name an expert
  /// Keys beyond those that all families share. config holds the shared ones already.
  Status (*configure)(GgufMetadata& metadata, json::object& config) = nullptr;
};

/// The family of a file. A llama with experts is a Mixtral. Errors: kUnsupported, naming the architecture.
Result<GgufArchitecture> gguf_architecture(std::string_view name, bool has_experts);

}  // namespace tare::checkpoints
