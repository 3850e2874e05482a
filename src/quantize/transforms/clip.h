#pragma once

#include <span>
#include <vector>

#include "quantize/transform.h"

namespace tare::quantize {

/// What a candidate range is measured by.
enum class ClipMetric {
  kDiagonal,  // sum over the group of G_kk (w - w_hat)^2
  kOutput,    // squared error of the group's part of the output: d_g^T G_gg d_g
};

/// Factors on the range of each group of a matrix, [n * groups], found by trying each ratio on all groups at once and
/// keeping, group by group, the one of least error through the matrix's real grid. Ratio 1 is always tried first and
/// wins ties. A row that is one group is measured by the full Gram. `groups_first_row`: see shared_ratio.
/// Errors: as ChosenGrid::choose.
Result<std::vector<float>> search_clip(const BlockMatrix& matrix, const Gram& gram, std::span<const float> ratios,
                                       ClipMetric metric, Products& products);

/// 1, then down to `least` in `steps` equal steps.
std::vector<float> clip_ratios(int steps, float least);

/// Chooses BlockMatrix::clip of every quantized matrix. Grids with groups: 20 ratios down to 0.5 (AWQ); rows that are
/// one group: 80 down to 0.2 (QoQ per channel), where q and k share one ratio that is judged by the attention half's
/// output. Settings: "clip.steps", "clip.least", "clip.metric" (0 diagonal, 1 output), "clip.skip_qk" (1: q and k keep
/// their ranges; the default for groups, as AWQ does).
/// Source: AWQ (arXiv:2306.00978), appendix and code; QServe (arXiv:2405.04532), section 4.4.
Result<TransformReport> clip_ranges(Block& block, BlockData& data, const TransformContext& context);

}  // namespace tare::quantize
