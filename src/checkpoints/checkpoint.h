#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/model_weights.h"

namespace tare::checkpoints {

struct CheckpointFormat;

struct LoadOptions {
  /// Name of a format the user insists on (--quantization). Empty: what the checkpoint says. A name that contradicts
  /// the checkpoint is refused.
  std::string format;
  /// The registry to choose from, with the formats of plugins; nullptr: what is built in.
  const std::vector<CheckpointFormat>* formats = nullptr;
};

/// Opens a model: a Hugging Face directory (config.json and safetensors, sharded or not), one .safetensors file or a
/// .gguf file (the first of a split one stands for all). Only headers and small tables are read now: each weight is
/// loaded, checked and scanned for NaN and inf when it is asked for, straight from the mapped file.
///
/// Every tensor of the files is accounted for: named by the index = found in the headers = taken exactly once by the
/// format's reader; a table of known leftovers (known_leftovers()) is the only waiver, and each use of it is told in
/// `notes`. Whether the names are those the architecture needs is the model's check.
/// Errors: kIo; kInvalidInput (damage, contradiction, a tensor too many or too few, each by name); kUnsupported (a
/// format or part of one that tare does not read, with the reason).
Result<tensor::ModelWeights> load_checkpoint(const std::string& path, const LoadOptions& options = {});

/// The same over a list of formats of the caller's (the built-in ones and those of plugins).
Result<tensor::ModelWeights> load_checkpoint(const std::string& path, const LoadOptions& options,
                                             const std::vector<CheckpointFormat>& formats);

/// A tensor that some tools save and nobody needs: `suffix` ends its name.
struct KnownLeftover {
  std::string_view suffix;
  std::string_view why;
};
const std::vector<KnownLeftover>& known_leftovers();

}  // namespace tare::checkpoints
