#include "checkpoints/kernel_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoints/gptq_config.h"
#include "checkpoints/online.h"

namespace tare::checkpoints {

namespace {

Error mismatch(const Source& source, std::string_view name, std::string expected, std::string found) {
  return invalid_input(
      fmt::format("{} does not take this checkpoint", name),
      {.where = source.quantization_where, .expected = std::move(expected), .found = std::move(found)});
}

bool marlin_group(int64_t group) {
  constexpr std::array<int64_t, 4> kGroups = {-1, 32, 64, 128};
  return std::find(kGroups.begin(), kGroups.end(), group) != kGroups.end();
}

Status accepts_gptq_marlin(const Source& source) {
  TARE_ASSIGN(const GptqConfig config, GptqConfig::parse(source.quantization, source.quantization_where));
  const GptqModule& m = config.base;
  if ((m.bits == 4 || m.bits == 8) && m.symmetric && marlin_group(m.group_size)) return {};
  return mismatch(
      source, "gptq_marlin", "4 or 8 bits, symmetric, groups of 32, 64, 128 or the row",
      fmt::format("{} bits, {}, group_size {}", m.bits, m.symmetric ? "symmetric" : "asymmetric", m.group_size));
}

Status accepts_awq_marlin(const Source& source) {
  const std::string& where = source.quantization_where;
  TARE_ASSIGN(const bool zero_point, json::get_bool_or(source.quantization, "zero_point", true, where));
  TARE_ASSIGN(const int64_t group, json::get_int_or(source.quantization, "group_size", 128, where));
  if (zero_point && marlin_group(group)) return {};
  return mismatch(source, "awq_marlin", "zero_point true, groups of 32, 64, 128 or the row",
                  fmt::format("zero_point {}, group_size {}", zero_point, group));
}

}  // namespace

std::vector<CheckpointFormat> kernel_names() {
  return {
      {.name = "deepspeedfp",
       .config_files = {},
       .min_capability = 60,
       .activation_dtypes = {"float16", "bfloat16"},
       .reason = "its FP6 buffer is laid out inside DeepSpeed and described nowhere",
       .online = false},
      {.name = "tpu_int8",
       .activation_dtypes = {"bfloat16", "float16"},
       .reason = "int8 at load for TPUs only; quantize --method rtn --scheme W8A8 makes the same form",
       .online = false},
      {.name = "ptpc_fp8",
       .activation_dtypes = {"bfloat16", "float16"},
       .reads = "quantizes dense weights at load: e4m3 per output channel, activations e4m3 per token",
       .online = true,
       .quantize = quantize_fp8_per_channel},
      {.name = "bitblas",
       .config_files = {"quantize_config.json"},
       .min_capability = 70,
       .activation_dtypes = {"float16", "bfloat16"},
       .reason = "the order of its weight tiles is decided inside the bitblas library and not documented",
       .detect =
           [](const Source& source) {
             const json::value* method = json::find(source.quantization, "quant_method");
             const json::value* layout = json::find(source.quantization, "checkpoint_format");
             const json::value* flag = json::find(source.quantization, "is_bitblas_format");
             const bool mine = (method && *method == json::value("bitblas")) ||
                               (layout && *layout == json::value("bitblas")) || (flag && *flag == json::value(true));
             return mine ? Match::kYes : Match::kNo;
           }},
      {.name = "gptq_marlin",
       .config_files = {"quantize_config.json"},
       .min_capability = 80,
       .activation_dtypes = {"float16", "bfloat16"},
       .reads = "gptq checkpoints, 4 and 8 bit symmetric",
       .stands_for = {"gptq", "marlin"},
       .accepts = accepts_gptq_marlin},
      {.name = "gptq_bitblas",
       .config_files = {"quantize_config.json"},
       .min_capability = 70,
       .activation_dtypes = {"float16", "bfloat16"},
       .reason = "needs the bitblas library; gptq reads the same checkpoints"},
      {.name = "awq_marlin",
       .config_files = {"quantize_config.json"},
       .min_capability = 80,
       .activation_dtypes = {"float16", "bfloat16"},
       .reads = "awq checkpoints with zero points",
       .stands_for = {"awq"},
       .accepts = accepts_awq_marlin},
      {.name = "experts_int8",
       .min_capability = 80,
       .activation_dtypes = {"float16", "bfloat16"},
       .reason = "int8 experts at load; quantize --set selects experts and writes them once"},
      {.name = "neuron_quant", .activation_dtypes = {}, .reason = "for AWS Neuron devices only"},
      {.name = "ipex",
       .config_files = {"quant_config.json", "quantize_config.json"},
       .min_capability = -1,
       .activation_dtypes = {"bfloat16", "float16"},
       .reads = "gptq and awq checkpoints",
       .stands_for = {"gptq", "awq"}},
      {.name = "moe_wna16",
       .config_files = {"quantize_config.json"},
       .min_capability = 70,
       .activation_dtypes = {"float16", "bfloat16"},
       .reason = "a GPU kernel for experts of gptq and awq checkpoints; gptq and awq read the same files"},
  };
}

}  // namespace tare::checkpoints
