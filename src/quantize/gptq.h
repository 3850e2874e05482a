#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "quantize/grid.h"
#include "quantize/hessian.h"

namespace tare::quantize {

struct GptqOptions {
  double damping = 0.01;  // added to the diagonal, as a share of its mean; grows when the factorization fails
  bool act_order = true;  // columns by falling diagonal; groups stay those of the original order
};

struct GptqResult {
  std::vector<uint8_t> codes;  // [N*K]
  double damping = 0;          // that was needed; < 0: none was enough and the codes are the nearest ones
  int64_t dead_columns = 0;    // never active: rounded to nearest
};

/// Codes for w [N, K] on a grid whose scales are fixed: columns are rounded one by one, and what rounding costs is
/// moved to the columns that are still free, weighted by the inverse of H = G + damping.
/// Columns that no token ever touched keep their nearest code (they are not zeroed: other data may touch them).
/// Source: GPTQ (arXiv:2210.17323), algorithm 1, with act-order over static groups.
Result<GptqResult> gptq(const ChosenGrid& grid, const float* w, const Gram& gram, const GptqOptions& options,
                        Products& products);

}  // namespace tare::quantize
