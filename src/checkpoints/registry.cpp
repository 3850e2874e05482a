#include "checkpoints/registry.h"

#include <algorithm>

#include "checkpoints/aqlm.h"
#include "checkpoints/awq.h"
#include "checkpoints/bitsandbytes.h"
#include "checkpoints/compressed_tensors.h"
#include "checkpoints/dense.h"
#include "checkpoints/fbgemm_fp8.h"
#include "checkpoints/fp8.h"
#include "checkpoints/gguf.h"
#include "checkpoints/gptq.h"
#include "checkpoints/hqq.h"
#include "checkpoints/kernel_names.h"
#include "checkpoints/marlin.h"
#include "checkpoints/modelopt.h"
#include "checkpoints/mxfp4.h"
#include "checkpoints/qqq.h"
#include "checkpoints/qserve.h"
#include "checkpoints/quark.h"
#include "checkpoints/tare.h"
#include "checkpoints/torchao.h"

namespace tare::checkpoints {

std::vector<CheckpointFormat> builtin_formats() {
  constexpr CheckpointFormat (*kRows[])() = {
      gguf_format,                // no configuration: the file itself
      tare_format,                // quant_method tare
      compressed_tensors_format,  // quant_method compressed-tensors
      gptq_format,                // quant_method gptq, layouts gptq, gptq_v2, gptq_p
      marlin_format,              // quant_method gptq, layout marlin
      gptq_marlin_24_format,      // quant_method gptq, layout marlin_24
      awq_format,                 // quant_method awq
      fp8_format,                 // quant_method fp8
      fbgemm_fp8_format,          // quant_method fbgemm_fp8
      bitsandbytes_format,        // quant_method bitsandbytes
      modelopt_format,            // quant_method or producer modelopt
      nvfp4_format,               // the same with quant_algo NVFP4
      aqlm_format,                // quant_method aqlm
      hqq_format,                 // quant_method hqq
      qqq_format,                 // quant_method qqq
      quark_format,               // quant_method quark
      torchao_format,             // quant_method torchao
      mxfp4_format,               // quant_method mxfp4
      qserve_format,              // no configuration: the names of its tensors
  };
  std::vector<CheckpointFormat> out;
  for (const auto& row : kRows) out.push_back(row());
  for (CheckpointFormat& row : kernel_names()) out.push_back(std::move(row));
  out.push_back(dense_format());  // what is left: no quantization at all
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
