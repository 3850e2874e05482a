#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "tensor/model_weights.h"

namespace tare::quantize {

/// A weight with its full name ("model.layers.3.mlp.up_proj.weight").
struct NamedWeight {
  std::string name;
  tensor::Weight weight;
  tensor::ActivationSpec activation;
};

/// Weights as they stand in memory, byte by byte, with a JSON description in front: tare's own scratch form for results
/// that are not in their final file yet. Only the version that wrote it reads it (the journal says which).
///
///     u64 length of the description (little-endian), description, padding to 64, buffers each padded to 64
///
/// Errors: kUnsupported (a codebook form); kIo.
Status write_weights(const std::string& path, const std::vector<NamedWeight>& weights);

/// Maps the file; the weights are views of it. Errors: kInvalidInput (not such a file, damaged).
Result<std::vector<NamedWeight>> map_weights(const std::string& path);

}  // namespace tare::quantize
