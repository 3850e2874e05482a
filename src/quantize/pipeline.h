#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "model/architecture.h"
#include "quantize/calibration.h"
#include "quantize/journal.h"
#include "quantize/recipe.h"
#include "quantize/solver.h"
#include "quantize/transform.h"
#include "tensor/model_weights.h"

namespace tare::quantize {

/// What became of one matrix.
struct MatrixReport {
  std::string name;    // module, without ".weight"
  std::string scheme;  // describe(MatrixScheme)
  double bpw = 0;      // scales and zeros included
  double error = 0;    // relative squared error; see `error_kind` of the outcome
  double error_rtn = 0;
  int64_t tokens = 0;  // seen in calibration; 0 without data
  std::string status;  // "rtn", "gptq", "kept", "rtn (gptq was worse)", ...
  int64_t layer = 0;
};

/// What happens to the embedding table and the output head.
enum class HeadChoice {
  kSource,  // as the source has them
  kBF16,
  kF16,
  kF32,
  kInt8,    // s8 per row; a tied table is shared by both
  kInt8A8,  // the same, and the head's input becomes s8 per token
};
Result<HeadChoice> parse_head(std::string_view text);
std::string_view head_name(HeadChoice head);

struct PipelineOptions {
  const Recipe* recipe = nullptr;
  MatrixScheme scheme;
  SchemeWidths widths;
  std::vector<SchemeException> exceptions;   // --set, later ones win
  std::vector<std::string> ignore;           // --ignore, patterns over module names
  std::map<std::string, MatrixScheme> plan;  // by module; not empty: decides in place of scheme, exceptions and ignore
  HeadChoice head = HeadChoice::kSource;
  bool dequantize_first = false;  // a source that declares quantization may be quantized again
  CalibrationData calibration;    // for recipes that see data
  SolveOptions solve;
  std::map<std::string, double> transform_settings;  // TransformContext::settings
  std::string spill_folder = "/tmp";                 // for activations that the budget has no room for
  kernels::LinearRegistry kernels = kernels::builtin_linear_kernels();
  machine::Capabilities caps;
  MemoryBudget* budget = nullptr;
  Journal* journal = nullptr;  // finished blocks go there, and those that are there already are taken from it
  std::function<void(const MatrixReport&, int64_t done, int64_t total)> progress;
  std::function<void(const TransformReport&)> transform_progress;
};

struct Outcome {
  tensor::ModelWeights weights;
  std::vector<MatrixReport> matrices;       // every matrix of the layers, in forward order
  std::vector<TransformReport> transforms;  // in the order in which they ran
  std::vector<std::string> substitutions;   // what was decided or could not be kept, one sentence each
  std::string error_kind;                   // "weight" or "output"
  int64_t parameters = 0;
  int64_t stored_bytes = 0;
};

/// Quantizes block by block: transforms in the order of the recipe, then the matrices in the order in which the block
/// reads them, each on inputs that come from what is quantized already. Every Linear of the layers is quantized unless
/// an exception says otherwise; norms and biases stay. `source` is loaded one matrix at a time and must outlive the
/// outcome's weights (shared). Errors: a source that is quantized already (unless allowed); patterns that match
/// nothing; kDoesNotFit; kInterrupted; NaN or inf.
Result<Outcome> quantize_model(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                               const PipelineOptions& options, ThreadPool& pool);

/// sum (a - b)^2 / sum a^2 over [n, k], summed in a fixed order. 0 when both are zero.
double relative_error(const float* reference, const float* value, int64_t n, int64_t k, ThreadPool& pool);

}  // namespace tare::quantize
