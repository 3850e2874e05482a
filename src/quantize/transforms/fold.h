#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "quantize/block.h"

/// Moving range between neighbours without changing the function: what makes an input is divided by a factor per
/// channel, what reads it is multiplied.
///
///   site     maker of the input                        readers
///   qkv      weight of the norm before attention       q, k, v
///   out      rows of v_proj, bias included             o       (attention mixes tokens, not channels)
///   gate_up  weight of the norm before the MLP         gate, up
///   down     rows of up_proj, bias included            down    (the linear arm: the gate passes the activation)
namespace tare::quantize {

/// Number of factors at a site: kv_heads * head_dim for kOut (query heads that share a kv head share its factors), else
/// the width of the input.
int64_t factor_count(const Block& block, model::Site site);
/// Errors: kUnsupported when nothing there can take the factor (a block without a norm before it), naming the family.
Status can_fold(const Block& block, model::Site site);
/// factors [factor_count], finite and > 0. Touches the block. Errors: as can_fold; a factor out of range.
Status fold_factors(Block& block, model::Site site, std::span<const float> factors);

/// One factor per channel of the input: [factor_count] -> [width].
std::vector<float> spread_factors(const Block& block, model::Site site, std::span<const float> factors);
/// A value per channel of the input [width] -> one per factor: the largest of those that share it.
std::vector<float> per_factor_max(const Block& block, model::Site site, std::span<const float> values);
/// Largest magnitude (or mean magnitude relative to its group's largest, as AWQ weighs them) of each column over all
/// matrices that read there. [width].
std::vector<float> column_absmax(const Block& block, model::Site site);
/// AWQ's weight statistic: mean over rows of |w| / max|w of its group|, all readers stacked. [width].
std::vector<float> column_share(const Block& block, model::Site site);

/// x^alpha / w^beta per channel; a span of 0 gives factor 1; if any factor is not finite, all become 1.
/// x, w: [n], >= 0. Source: SmoothQuant (arXiv:2211.10438), eq. 4, with a free second exponent as in QServe.
std::vector<float> smoothing_factors(std::span<const float> x, std::span<const float> w, double alpha, double beta);

/// Multiplies columns of w [n, k] by factors [k].
void scale_columns(float* w, int64_t n, int64_t k, std::span<const float> factors);
/// Rows of a view times factors [n], bias included.
void scale_rows(const RoleView& view, std::span<const float> factors);

}  // namespace tare::quantize
