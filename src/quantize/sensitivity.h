#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/result.h"
#include "model/architecture.h"
#include "quantize/block_data.h"
#include "tensor/model_weights.h"

namespace tare::quantize {

struct ProbeOptions {
  int64_t tokens = 256;           // of the first sequences of the data
  int64_t sequence_length = 128;  // longest piece of one sequence
  GridSpec grid = {.bits = 4, .group_size = 128};
  std::string spill_folder = "/tmp";
  MemoryBudget* budget = nullptr;
};

/// How far the model's predictions move when one matrix is rounded coarsely: KL(model || model with that matrix
/// rounded), measured, for every matrix of the layers. The model is walked once, block by block; beside the clean
/// stream of hidden states goes one stream of differences for each matrix that is behind, so that each block is loaded
/// once and nothing of the model is held. That is (matrices / 2) forward passes over the probe's tokens.
/// No gradient is needed. One thread at a time; work inside runs on the pool.
class Probes {
 public:
  /// Errors: no tokens; those of BlockData::start.
  static Result<Probes> start(const tensor::ModelWeights& source, const model::Architecture& arch,
                              const CalibrationData& data, const ProbeOptions& options, Products& products);

  /// The next layer. Its matrices are rounded one at a time and are as before at the end.
  Status run(Block& block);
  /// After the last layer: mean KL in nats over the tokens for each matrix, in the order in which they came. Zero or
  /// rounding noise (about 1e-9, either sign) where a matrix has no effect.
  Result<std::vector<double>> finish(const tensor::ModelWeights& source);

 private:
  Probes() = default;

  const model::Architecture* arch_ = nullptr;
  Products* products_ = nullptr;
  GridSpec grid_;
  std::unique_ptr<CalibrationData> tokens_;
  std::unique_ptr<BlockData> data_;
  std::vector<TokenStore> differences_;  // of hidden states behind the last block, one a matrix
};

}  // namespace tare::quantize
