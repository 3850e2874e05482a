#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quantize/matrix_plan.h"
#include "quantize/pipeline.h"
#include "quantize/sensitivity.h"

namespace tare::quantize {

/// What rounding one matrix would do, in every form that was asked about.
struct MeasuredMatrix {
  double probe_kl = 0;               // nats: measured with this matrix rounded as ProbeOptions::grid says
  double probe_error = 0;            // its squared output error then, relative to its output
  std::vector<double> errors;        // the same, form by form, made by the form's algorithm; NaN: not asked about
  std::vector<std::string> methods;  // what made the code: "gptq", or "rtn" where that was no worse

  /// Predicted KL in nats of the model with this matrix in a form: divergence grows with the square of a small error,
  /// so the measured one is scaled by the ratio of squared errors. 0 where rounding does not reach the output.
  double divergence(size_t form) const;
};

struct MeasureOptions {
  int64_t rows = 32;  // of each matrix, evenly spread: rows are rounded independently, so their errors are a sample
  int sweeps = 1;     // SolveOptions::sweeps while measuring: more lower the errors of all forms alike
  ProbeOptions probes;
  std::function<void(int64_t done, int64_t total)> progress;  // blocks
};

/// Walks the unquantized model over the calibration data, block by block. wanted[i][f]: whether matrix i is measured in
/// forms[f]. Codes are chosen on three quarters of the sequences; output errors are trace(d G d^T) with the Gram matrix
/// G of the matrix' inputs on the other quarter.
/// Errors: no calibration data; those of loading; kInterrupted.
Result<std::vector<MeasuredMatrix>> measure_forms(const std::shared_ptr<const tensor::ModelWeights>& source,
                                                  const model::Architecture& arch,
                                                  const std::vector<PlannedMatrix>& matrices,
                                                  const std::vector<MatrixScheme>& forms,
                                                  const std::vector<std::vector<bool>>& wanted,
                                                  const PipelineOptions& options, const MeasureOptions& measure,
                                                  ThreadPool& pool);

}  // namespace tare::quantize
