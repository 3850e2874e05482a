#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tare::model {

/// Rotary position embedding: which frequencies turn which channels.
enum class RopeKind { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int64_t rotary_dim = 0;  // channels of a head that turn, half-split: (j, j + rotary_dim/2)
  double factor = 1.0;
  int64_t original_context = 0;      // length the model was trained with, before scaling
  double low_freq_factor = 1.0;      // llama3
  double high_freq_factor = 4.0;     // llama3
  double beta_fast = 32.0;           // yarn
  double beta_slow = 1.0;            // yarn
  bool truncate = true;              // yarn
  double attention_factor = 0.0;     // yarn, longrope; 0 = by formula
  double mscale = 0.0;               // yarn; 0 = absent
  double mscale_all_dim = 0.0;       // yarn; 0 = absent
  std::vector<double> short_factor;  // longrope, rotary_dim/2 each
  std::vector<double> long_factor;
};

/// Angles per position: position * inv_freq[j]; cos and sin are multiplied by `attention_scaling`.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [rotary_dim / 2]
  float attention_scaling = 1.0f;
};

/// Frequencies for sequences up to `context` tokens. dynamic and longrope depend on the length: tare fixes them once,
/// from the longest context the engine is set to, so that a token's key never depends on what comes later (promise P1).
/// Computed in f32 step by step like the reference implementation (transformers modeling_rope_utils).
RopeFrequencies rope_frequencies(const RopeSpec& spec, int64_t context);

/// Reads one RoPE description: `parameters` is `rope_parameters` (new spelling, with rope_theta inside) or
/// `rope_scaling` (old); either may be empty. `type` and `rope_type` are the same key; both present and different is an
/// error, so is an unknown kind, a missing required field, or an unknown one. max_positions, original_context:
/// config.max_position_embeddings and config.original_max_position_embeddings (0 = absent).
Result<RopeSpec> read_rope(const json::object& parameters, double theta, int64_t rotary_dim, int64_t max_positions,
                           int64_t original_context, std::string_view where);

}  // namespace tare::model
