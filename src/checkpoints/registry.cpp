#include "checkpoints/registry.h"

#include <algorithm>

#include "checkpoints/awq.h"
#include "checkpoints/bitsandbytes.h"
#include "checkpoints/compressed_tensors.h"
#include "checkpoints/dense.h"
#include "checkpoints/fp8.h"
#include "checkpoints/gguf.h"
#include "checkpoints/gptq.h"
#include "checkpoints/hqq.h"
#include "checkpoints/qqq.h"
#include "checkpoints/tare.h"
#include "checkpoints/torchao.h"

namespace tare::checkpoints {

std::vector<CheckpointFormat> builtin_formats() {
  constexpr CheckpointFormat (*kRows[])() = {
      gguf_format,                // no configuration: the file itself
      tare_format,                // quant_method tare
      gptq_format,                // quant_method gptq
      awq_format,                 // quant_method awq
      compressed_tensors_format,  // quant_method compressed-tensors
      fp8_format,                 // quant_method fp8
      bitsandbytes_format,        // quant_method bitsandbytes
      hqq_format,                 // quant_method hqq
      qqq_format,                 // quant_method qqq
      torchao_format,             // quant_method torchao
      dense_format,               // no quantization at all
  };
  std::vector<CheckpointFormat> out;
  for (const auto& row : kRows) out.push_back(row());
  return out;
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
