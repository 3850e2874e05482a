#pragma once

#include <span>

#include "base/result.h"
#include "tensor/model_weights.h"

namespace tare::checkpoints {

/// Replaces the matrices of a dense model by quantized ones, each made when it is loaded: nothing is calibrated, the
/// scales follow from the weights alone. Embeddings, head, norms, routers and biases stay dense.

/// e4m3, one scale amax / 448 for the whole matrix; activations e4m3 with a scale per token (the peer engine takes one
/// over all tokens of a batch; said in notes).
Status quantize_fp8_per_tensor(tensor::ModelWeights& weights);
/// e4m3, one scale amax / 448 for each row; activations e4m3 per token (PTPC).
Status quantize_fp8_per_channel(tensor::ModelWeights& weights);
/// NF4 in blocks of 64 along the row with an f32 scale, as bitsandbytes quantizes at load; a row that is no multiple of
/// 64 stays dense, and that is said.
Status quantize_nf4(tensor::ModelWeights& weights);
/// Linear layers by name: a configuration would name classes, a file has only names.
bool is_linear_weight(const std::string& name, const tensor::WeightInfo& info);
/// The 16 values of NF4 (docs/formats.md 5.3).
std::span<const float> nf4_values();

}  // namespace tare::checkpoints
