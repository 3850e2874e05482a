#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/weight_plan.h"
#include "quantize/pipeline.h"

namespace tare::quantize {

/// A matrix of the layers with its scheme after all exceptions.
struct PlannedMatrix {
  model::LayerLinear linear;
  int64_t layer = 0;
  MatrixScheme scheme;
  bool excepted = false;  // an exception or --ignore says what it becomes
};

/// Numbers of weights that decide what one block at work takes.
struct BlockSizes {
  int64_t block = 0;    // weights of a block; the first stands for all
  int64_t largest = 0;  // weights of the largest matrix
  int64_t widest = 0;   // most in_features
};
BlockSizes block_sizes(const std::vector<PlannedMatrix>& matrices);

/// All matrices of the layers in forward order. Errors: a pattern that matches nothing or does not compile.
Result<std::vector<PlannedMatrix>> plan_matrices(const model::Architecture& arch, const PipelineOptions& options);

/// A source that is quantized already is rounded twice: said for a GGUF, which is often all there is of a model;
/// refused for a checkpoint that declares it in its configuration, unless asked for.
Status check_source(const tensor::ModelWeights& source, const std::vector<PlannedMatrix>& matrices,
                    const PipelineOptions& options, std::vector<std::string>& substitutions);

/// The embedding table and the head as --head says, added to `out`; what was decided goes to `substitutions`.
Status add_tables(const tensor::ModelWeights& source, const model::Architecture& arch, HeadChoice head,
                  tensor::ModelWeights& out, std::vector<std::string>& substitutions, ThreadPool& pool);

}  // namespace tare::quantize
