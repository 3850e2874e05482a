#pragma once

#include "quantize/transform.h"

namespace tare::quantize {

/// Multiplies the weight of every norm before a matrix into the matrices that read it, and leaves norms of 1. The final
/// norm goes into the head; a tied head becomes a table of its own first (said in the report).
/// Norms behind a half layer (Gemma 2, OLMo 2) scale what is added to the stream and stay as they are.
Result<std::shared_ptr<const tensor::ModelWeights>> fold_norms(std::shared_ptr<const tensor::ModelWeights> source,
                                                               model::Architecture& arch,
                                                               const TransformContext& context,
                                                               TransformReport& report);

/// The residual stream x becomes x Q with an orthogonal Hadamard Q: embedding rows and everything that reads the stream
/// get W Q, everything that writes it Q^T W. An RMSNorm of weight 1 commutes with Q. Settings: "rotate.random" (1:
/// random signs), "rotate.seed".
/// Errors: norms that are not folded; kUnsupported: a norm between a half layer and the stream, a half layer without a
/// norm before it, a hidden size without a Hadamard matrix - each named.
/// Source: QuaRot (arXiv:2404.00456) section 3.1; SliceGPT (arXiv:2401.15024) for the invariance.
Result<std::shared_ptr<const tensor::ModelWeights>> rotate_stream(std::shared_ptr<const tensor::ModelWeights> source,
                                                                  model::Architecture& arch,
                                                                  const TransformContext& context,
                                                                  TransformReport& report);

/// A Hadamard matrix per head on what v_proj writes and its inverse on what o_proj reads: exact, because attention
/// mixes tokens and not channels. Values become flat for KV4, and o_proj's input for A8.
/// Errors: kUnsupported: a head_dim without a Hadamard matrix.
Result<TransformReport> rotate_heads(Block& block, BlockData& data, const TransformContext& context);

}  // namespace tare::quantize
