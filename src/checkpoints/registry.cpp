#include "checkpoints/registry.h"

#include <algorithm>

#include "checkpoints/awq.h"
#include "checkpoints/compressed_tensors.h"
#include "checkpoints/dense.h"
#include "checkpoints/gguf.h"
#include "checkpoints/gptq.h"
#include "checkpoints/tare.h"

namespace tare::checkpoints {

std::vector<CheckpointFormat> builtin_formats() {
  return {
      gguf_format(), gptq_format(), awq_format(), compressed_tensors_format(), tare_format(), dense_format(),
  };
}

const CheckpointFormat* find_format(const std::vector<CheckpointFormat>& formats, std::string_view name) {
  for (const CheckpointFormat& format : formats) {
    if (format.name == name || std::find(format.aliases.begin(), format.aliases.end(), name) != format.aliases.end()) {
      return &format;
    }
  }
  return nullptr;
}

}  // namespace tare::checkpoints
