#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quantize/block.h"
#include "quantize/block_walk.h"
#include "quantize/gptq.h"

namespace tare::quantize {

struct SolveOptions {
  GptqOptions gptq;
  bool search_ranges = true;  // scales that lose least on diag(H), before the codes
  int sweeps = 3;             // rounds of scale refit and of trying each code again, after GPTQ
  double correction = 0.5;    // share of the error of earlier matrices that the target makes up for
};

struct Solved {
  tensor::QuantizedTensor weight;
  std::vector<float> decoded;  // [N, K]
  double error = 0;            // relative to the target's output, on the data
  double error_rtn = 0;        // of nearest codes
  std::string status;          // "gptq", "gptq (3 dead columns)", "rtn (gptq was worse)", ...
};

/// Quantizes the matrices that read one site. The factor of the inverse is made once for all of them.
class SiteSolver {
 public:
  /// inputs must outlive the solver.
  static Result<SiteSolver> make(const SiteInputs& inputs, const SolveOptions& options, Products& products);

  /// residual_multiplier: of the architecture, when the matrix writes the residual stream; else 0.
  Result<Solved> solve(const BlockMatrix& matrix, double residual_multiplier);

 private:
  explicit SiteSolver(Products& products) : products_(&products) {}
  /// What the outputs should equal: w, moved towards what makes up for the error of the inputs.
  Result<std::vector<float>> target(const BlockMatrix& matrix, double residual_multiplier);

  Products* products_;
  SolveOptions options_;
  const SiteInputs* inputs_ = nullptr;
  InverseFactor factor_;
};

}  // namespace tare::quantize
