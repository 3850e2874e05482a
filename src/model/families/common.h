#pragma once

#include "model/architecture.h"

/// What most families read alike. A family calls `read_common` first and then says what is different.
namespace tare::model {

/// Sizes, norms epsilon, activation, tied flag, default attention scale head_dim^-0.5, one RoPE for all layers, a plan
/// of full attention. Errors name the key.
Result<Architecture> read_common(const json::object& config, std::string_view family);

/// `layer_types` (list of "full_attention" / "sliding_attention") into windows of `window` tokens. Errors: another
/// count or name.
Status apply_layer_types(const json::object& config, int64_t window, Architecture& arch);

/// Whether rope_parameters holds one description a layer type (then read_common leaves `ropes` empty).
bool rope_is_keyed_by_layer_type(const json::object& config);

/// The rotary description of a config in either spelling (rope_parameters; rope_scaling + rope_theta), for one layer
/// type when rope_parameters is keyed by layer type. Contradictions between both spellings are errors.
Result<RopeSpec> read_config_rope(const json::object& config, const Architecture& arch, int64_t rotary_dim,
                                  double default_theta, std::string_view layer_type = {});

/// Llama's reading, the base of families that differ from it in a few facts.
Result<Architecture> describe_llama(const json::object& config);

/// Qwen's way to say which layers have a sliding window.
Status apply_qwen_window(const json::object& config, Architecture& arch);

}  // namespace tare::model
