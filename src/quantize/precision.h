#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quantize/form_errors.h"
#include "quantize/precision_plan.h"

namespace tare::quantize {

/// Mixed precision to a budget: which form each matrix gets so that the file stays within a size and the model's
/// predictions move least. See docs/decisions/mixed-precision.md.
struct PrecisionRequest {
  std::shared_ptr<const tensor::ModelWeights> source;
  const model::Architecture* arch = nullptr;
  PipelineOptions options;  // scheme, exceptions, ignore, head, calibration, kernels, caps, ...; the recipe transforms
                            // nothing. Matrices with an exception keep what it says.
  SchemeFlags flags;        // what they fix is not tried otherwise
  const checkpoints::CheckpointWriter* writer = nullptr;
  bool allow_loss = false;
  int64_t target_bytes = 0;          // of the weight files, headers included; or
  std::optional<double> target_bpw;  // 8 * bytes / parameters
  MeasureOptions measure;
};

/// Measures, chooses, and settles the plan: plan.bytes <= target. Only forms with a kernel of this machine that is not
/// the reference, and that the format holds.
/// Errors: a format that does not hold matrices of different forms; no such form for a matrix (named); a target below
/// the smallest forms (with the smallest possible size); those of measure_forms.
Result<PrecisionPlan> make_plan(const PrecisionRequest& request, std::vector<std::string>& notes, ThreadPool& pool);

/// What a result holds besides the matrices of the layers, with the head as options.head says.
Result<WeightTensors> rest_of(const tensor::ModelWeights& source, const model::Architecture& arch, HeadChoice head,
                              const std::vector<PlannedMatrix>& matrices, const checkpoints::CheckpointWriter& writer,
                              bool allow_loss, ThreadPool& pool);

}  // namespace tare::quantize
