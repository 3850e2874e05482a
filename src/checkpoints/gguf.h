#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

CheckpointFormat gguf_format();
CheckpointWriter gguf_writer();

/// Names of the weights that one GGUF tensor becomes (several for stacked experts); for tests and tools.
/// Errors: a tensor that the architecture does not have.
Result<std::vector<std::string>> gguf_weight_names(const io::GgufFile& file, const io::GgufTensor& tensor);

/// A Mixtral weight under the name that reading a GGUF gives it, whatever tool spelled it; other names unchanged.
std::string gguf_weight_spelling(const std::string& name);

/// Row of the file for each row of a q or k matrix in half-split rotary order (docs/formats.md 6.6).
std::vector<int32_t> rotary_row_source(int64_t heads, int64_t head_dim);

}  // namespace tare::checkpoints
