#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/source.h"
#include "tensor/model_weights.h"

namespace tare::checkpoints {

/// How sure a format is that a checkpoint is its own.
enum class Match {
  kNo,
  kYes,
};

/// One format of checkpoints. Each stands in its own file as a function returning this struct; registry.cpp lists them.
/// Life: `detect` sees headers and configuration only; `read` fills a ModelWeights with lazy loaders and takes every
/// tensor it understands.
struct CheckpointFormat {
  std::string_view name;
  std::vector<std::string_view> aliases;
  std::vector<std::string_view> config_files;  // side files that may hold the quantization object
  int min_capability = 0;  // CUDA capability x 10 of the peer engine; -1: no GPU. For the table only
  std::vector<std::string_view> activation_dtypes;
  std::string_view reads;   // what it reads, in words, for the table
  std::string_view reason;  // why there is no working path; empty when there is one
  bool online = false;      // quantizes dense weights at load

  /// Names of formats whose checkpoints this one takes: in the peer engine it is a kernel for them. Here the kernel
  /// follows from the form of the weights, so the name changes nothing, and that is said.
  std::vector<std::string_view> stands_for;
  /// For a name that stands for others: whether it takes this very checkpoint. Errors: why not.
  Status (*accepts)(const Source& source) = nullptr;

  std::function<Match(const Source& source)> detect;
  std::function<Status(Source& source, const LoadOptions& options, tensor::ModelWeights& out)> read;
  /// Quantizes the weights of a dense checkpoint, lazily. Set exactly when `online` is.
  std::function<Status(tensor::ModelWeights& weights)> quantize;
};

}  // namespace tare::checkpoints
