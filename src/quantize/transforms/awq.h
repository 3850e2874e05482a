#pragma once

#include "quantize/transform.h"

namespace tare::quantize {

/// AWQ's scales: s = mean|x|^r, or mean|x|^r / share^(1-r) (its weighed form), divided by sqrt(max s * min s), r =
/// i/20, i = 0..19; the best of both families at each fold by the error of what is behind it, with the readers rounded
/// on their real grid. Folds: norm -> qkv, v -> o (query heads that share a kv head share its factors), norm -> gate,
/// up, up -> down. r = 0 of the first family changes nothing, so the search never makes a layer worse on its own
/// measure. Settings: "awq.steps" (20), "awq.o" (1: v -> o). Source: AWQ (arXiv:2306.00978), section 3.2; the weighed
/// form is its successors' "duo scaling".
Result<TransformReport> awq_scales(Block& block, BlockData& data, const TransformContext& context);

}  // namespace tare::quantize
