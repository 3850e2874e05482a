#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quantize/block_data.h"
#include "tensor/model_weights.h"

namespace tare::quantize {

/// What a transform may know of the whole job.
struct TransformContext {
  const model::Architecture* arch = nullptr;
  SchemeWidths widths;
  Products* products = nullptr;
  /// Settings of the recipe or the command line, by "transform.key" ("smooth_attention.alpha"). Absent: the default.
  std::map<std::string, double> settings;

  double setting(const std::string& key, double otherwise) const {
    const auto at = settings.find(key);
    return at == settings.end() ? otherwise : at->second;
  }
};

/// What a transform did, for the report.
struct TransformReport {
  std::string name;
  int64_t layer = -1;                                   // -1: the whole model
  std::string summary;                                  // "alpha 0.15 of 8 tried"
  std::vector<std::pair<std::string, double>> numbers;  // "alpha", "error_before", ...
  std::vector<std::string> notes;                       // what could not be done and why: shown as substitutions
  double output_change = 0;  // filled by the pipeline: relative squared change of the dense block's output
};

/// Changes one block in place (and calls Block::touch()) so that its output stays and its weights, activations or keys
/// become easier to round; or only chooses ranges (BlockMatrix::clip).
using BlockTransform = Result<TransformReport> (*)(Block& block, BlockData& data, const TransformContext& context);

/// Changes the whole model: returns a view of the source whose loaders give changed weights, one matrix at a time. It
/// may change the architecture (a head that is untied). Nothing of the model is held.
using ModelTransform = Result<std::shared_ptr<const tensor::ModelWeights>> (*)(
    std::shared_ptr<const tensor::ModelWeights> source, model::Architecture& arch, const TransformContext& context,
    TransformReport& report);

/// One row of the table. Exactly one of the two functions is set.
struct Transform {
  std::string_view name;
  std::string_view summary;
  bool needs_data = false;
  bool keeps_output = true;  // the pipeline proves it: the dense block's output before = after
  BlockTransform block = nullptr;
  ModelTransform model = nullptr;
};

/// All transforms (transforms/registry.cpp).
const std::vector<Transform>& transforms();
/// Errors: unknown; the names are listed.
Result<const Transform*> find_transform(std::string_view name);

/// A copy of `source` whose weights named in `changed` go through `change` when they are loaded; everything else is
/// loaded as before. `change` gets the f32 values [rows, columns] (a vector has one row) and returns them changed.
using WeightChange =
    std::function<Status(const std::string& name, std::vector<float>& values, int64_t rows, int64_t columns)>;
Result<std::shared_ptr<tensor::ModelWeights>> with_changes(std::shared_ptr<const tensor::ModelWeights> source,
                                                           const std::map<std::string, WeightChange>& changed);

}  // namespace tare::quantize
