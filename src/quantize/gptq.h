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

/// U with (H + damping)^-1 = U^T U, in the order in which columns are rounded. Made once for all matrices that read the
/// same input.
struct InverseFactor {
  std::vector<int32_t> order;  // [K]
  std::vector<float> u;        // [K, K], upper; empty: no damping was enough
  double damping = -1;         // that was needed, as a share of the mean; < 0: none was enough
  float added = 0;             // to each diagonal element
  int64_t dead_columns = 0;    // never active

  static Result<InverseFactor> make(const Gram& gram, const GptqOptions& options, Products& products);
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
Result<GptqResult> gptq(const ChosenGrid& grid, const float* w, const InverseFactor& factor, Products& products);
Result<GptqResult> gptq(const ChosenGrid& grid, const float* w, const Gram& gram, const GptqOptions& options,
                        Products& products);

/// Lowers sum of d (G + added) d^T, d = w - decoded, from given codes: `sweeps` rounds, each first refits every group's
/// scale (and minimum) to its codes, then tries the nearest codes around every weight with all others held. Codes and
/// grid change in place; the sum never rises by more than rounding. Rows do not depend on each other, so the result
/// does not depend on threads.
Status refine(ChosenGrid& grid, const float* w, const Gram& gram, float added, int sweeps, std::vector<uint8_t>& codes,
              Products& products);

}  // namespace tare::quantize
