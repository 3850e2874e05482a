#pragma once

#include "checkpoints/format.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

/// Weights kept in the tile order of the Marlin kernel (docs/formats.md 8.7).
CheckpointFormat marlin_format();
/// The same with 2:4 sparsity (docs/formats.md 8.8).
CheckpointFormat gptq_marlin_24_format();

/// One module: codes int32 [K/16, 2N], scales f16 [G, N], 4 bits, symmetric. group_size -1: one scale a row.
Status read_marlin(Parts& parts, std::string_view codes, std::string_view scales, int64_t group_size,
                   std::string_view format, tensor::ModelWeights& out);

}  // namespace tare::checkpoints
