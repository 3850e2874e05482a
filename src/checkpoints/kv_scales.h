#pragma once

#include "base/result.h"
#include "checkpoints/source.h"

namespace tare::checkpoints {

/// Takes the static scales of the KV cache under all names that writers use (docs/formats.md 4.4) and adds them under
/// the canonical ones: "<layer>.self_attn.k_scale", "v_scale", "q_scale", "prob_scale". x = code * scale.
/// One scale for both (kv_scale, or a lone k_scale) is used for K and V and told in notes.
/// Errors: one value under two names; a scale that is not finite and positive; a lone v_scale.
Status take_kv_scales(Source& source, tensor::ModelWeights& out);

}  // namespace tare::checkpoints
