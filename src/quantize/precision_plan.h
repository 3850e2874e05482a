#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "quantize/matrix_plan.h"
#include "quantize/recipe.h"
#include "quantize/storage.h"

namespace tare::quantize {

/// One matrix in a plan.
struct PlanRow {
  std::string name;                  // module, without ".weight"
  MatrixScheme scheme;               // keep: as the source has it; algorithm: the method
  int64_t bytes = -1;                // in the file, without its entry in the header; -1: not said
  std::optional<double> divergence;  // predicted KL in nats when only this matrix is quantized
  int64_t weights = 0;               // n * k, once settled
};

/// Which form every matrix gets: decides the bytes of a result together with model and data. As a file it is JSON for
/// people, one matrix a line:
///
///     {"name": "model.layers.0.self_attn.q_proj", "bits": 4, "group_size": 64, "symmetric": true,
///      "scale_dtype": "float16", "method": "gptq", "bytes": 186624, "divergence": 0.000123}
///
/// Keys of a row besides name, method, bytes and divergence are those of --set. method: gptq, rtn, or keep (stays as
/// the source has it; no other key then). bytes and divergence are told, not read: a row may be edited without them.
struct PrecisionPlan {
  std::string format;  // of the result
  int activation = 16;
  int kv = 16;
  std::string head = "source";  // --head
  int64_t target_bytes = 0;
  int64_t bytes = 0;                // of all weight files, headers included
  std::optional<double> predicted;  // sum of the rows' divergences
  json::object made_from;           // model, calibration, ...: for people and for a warning
  std::vector<PlanRow> rows;        // forward order

  bool needs_data() const;  // a row whose method sees data
  std::map<std::string, MatrixScheme> schemes() const;
};

std::string plan_text(const PrecisionPlan& plan);
/// Errors: malformed, unknown or missing keys, wrong values, a name twice; the row is named.
Result<PrecisionPlan> parse_plan(std::string_view text, const std::string& where);

/// Holds a plan against a model and the format of its result: every matrix once, no other, each in a form that the
/// format holds, joined ones alike. Fills in the bytes of rows and plan; a row whose bytes were others loses its
/// divergence, and so does a plan with a row that has none.
/// matrices: of the model, forward order. rest: everything else in the file.
/// Errors: kInvalidInput, kUnsupported; the matrix is named. Notes: what a reader of the plan should know.
Status settle_plan(PrecisionPlan& plan, const std::vector<PlannedMatrix>& matrices, const tensor::ModelWeights& source,
                   const checkpoints::CheckpointWriter& writer, Storage& storage, const WeightTensors& rest,
                   std::vector<std::string>& notes);

/// Matrices [first, last) that engines join into one product: q, k, v and gate, up of a layer; others alone.
std::vector<std::pair<size_t, size_t>> joined(const std::vector<PlannedMatrix>& matrices, bool joined_alike);

/// Average width of the codes over the weights of a settled plan, dense ones as 16.
double mean_bits(const PrecisionPlan& plan);

}  // namespace tare::quantize
