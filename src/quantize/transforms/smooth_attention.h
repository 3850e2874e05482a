#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quantize/transform.h"

namespace tare::quantize {

/// RoPE turns the pair (j, j + rotary_dim/2) of each head as one 2-vector, so only a factor that is equal on both
/// commutes with it: each span becomes the larger of its pair. Channels beyond rotary_dim are free. In place; spans
/// [heads * head_dim], half-split order; rotary_dim 0: no RoPE.
void pair_spans(std::span<float> spans, int64_t head_dim, int64_t rotary_dim);

/// lambda [kv_heads * head_dim] = r_K^alpha / r_Q^beta, from the largest magnitudes of queries and keys after RoPE:
/// r_q [heads * head_dim] (the max over the query heads of a group is taken), r_k [kv_heads * head_dim].
/// Under a q/k norm that all heads share, one lambda [head_dim] for all, repeated.
/// Zero spans give 1; anything not finite makes all 1. Source: QServe (arXiv:2405.04532), section 4.2 (alpha 0.5, beta
/// 0 there).
std::vector<float> attention_factors(const Block& block, std::span<const float> r_q, std::span<const float> r_k,
                                     double alpha, double beta);

/// Queries times lambda, keys divided by it, so that q . k stays: on the rows of q_proj and k_proj and their biases, or
/// on the weights of the q/k norms where there are some (they undo a factor before them). Touches the block.
void fold_attention_factors(Block& block, std::span<const float> lambda);

/// SmoothAttention: keys give their outlier channels to the queries, which stay in floating point. Settings:
/// "smooth_attention.alpha" and ".beta" fix the exponents; otherwise they are searched by the error of the attention
/// half with the cache at its width. Nothing is done when the cache stays in floating point.
Result<TransformReport> smooth_attention(Block& block, BlockData& data, const TransformContext& context);

}  // namespace tare::quantize
