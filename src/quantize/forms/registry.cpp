#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantize/forms/form.h"

namespace tare::quantize {

using tensor::ActivationGranularity;
using tensor::ActivationType;
using tensor::DType;

const std::vector<Form>& forms() {
  static const std::vector<Form> table = {
      {.name = "nf4",
       .codes = "nf4",
       .widths = {4},
       .group_size = 64,
       .any_group = true,
       .smallest_group = 32,
       .power_of_two = true,
       .quantize = quantize_nf4},
      {.name = "nf4-dq",
       .words = "scales in 8 bits",
       .codes = "nf4",
       .widths = {4},
       .group_size = 64,
       .any_group = true,
       .smallest_group = 32,
       .power_of_two = true,
       .quantize = quantize_nf4_double},
      {.name = "fp4",
       .codes = "fp4",
       .widths = {4},
       .group_size = 64,
       .any_group = true,
       .smallest_group = 32,
       .power_of_two = true,
       .quantize = quantize_fp4},
      {.name = "fp4-dq",
       .words = "scales in 8 bits",
       .codes = "fp4",
       .widths = {4},
       .group_size = 64,
       .any_group = true,
       .smallest_group = 32,
       .power_of_two = true,
       .quantize = quantize_fp4_double},
      {.name = "fp8",
       .words = "per channel",
       .codes = "e4m3",
       .widths = {8},
       .typed_scales = true,
       .activation = {.type = ActivationType::kE4M3},
       .quantize = quantize_fp8_rows},
      {.name = "fp8-tensor",
       .words = "per tensor",
       .codes = "e4m3",
       .widths = {8},
       .typed_scales = true,
       .activation = {.type = ActivationType::kE4M3},
       .quantize = quantize_fp8_tensor},
      {.name = "fp8-block",
       .words = "block 128x128",
       .codes = "e4m3",
       .widths = {8},
       .typed_scales = true,
       .activation = {.type = ActivationType::kE4M3,
                      .granularity = ActivationGranularity::kTokenGroup,
                      .group_size = 128},
       .quantize = quantize_fp8_blocks},
      {.name = "hqq",
       .words = "with float zero",
       .codes = "u",
       .widths = {4, 2, 3, 8},
       .group_size = 64,
       .any_group = true,
       .smallest_group = 8,
       .algorithm = "hqq",
       .quantize = quantize_hqq,
       .nearest = quantize_hqq_nearest},
      {.name = "mxfp4",
       .words = "scales 2^e",
       .codes = "e2m1",
       .widths = {4},
       .group_size = 32,
       .quantize = quantize_mxfp4},
      {.name = "nvfp4",
       .words = "scales e4m3",
       .codes = "e2m1",
       .widths = {4},
       .group_size = 16,
       .typed_scales = true,
       .shares_range = true,
       .quantize = quantize_nvfp4},
      {.name = "llm-int8",
       .words = "per channel",
       .codes = "s8",
       .widths = {8},
       .activation = {.type = ActivationType::kS8, .outlier_threshold = 6.0f},
       .quantize = quantize_llm_int8},
  };
  return table;
}

const Form* find_form(std::string_view name) {
  for (const Form& form : forms()) {
    if (form.name == name) return &form;
  }
  return nullptr;
}

GridSpec default_spec(const Form& form) {
  return {.kind = GridKind::kForm,
          .form = &form,
          .bits = form.widths.front(),
          .group_size = form.group_size,
          .scale_dtype = DType::kF32};
}

Status check_form(const GridSpec& spec) {
  const Form& form = *spec.form;
  const auto wrong = [&](std::string where, std::string expected, std::string found) {
    return unsupported(fmt::format("{} has no such setting", form.name),
                       {.where = std::move(where),
                        .expected = std::move(expected),
                        .found = std::move(found),
                        .hint = "say grid=integer to leave the form"});
  };
  if (std::find(form.widths.begin(), form.widths.end(), spec.bits) == form.widths.end()) {
    return wrong("bits", fmt::format("{}", fmt::join(form.widths, ", ")), fmt::format("{}", spec.bits));
  }
  const int64_t g = spec.group_size;
  const bool own = g == form.group_size;
  const bool other = form.any_group && g >= form.smallest_group && (!form.power_of_two || (g & (g - 1)) == 0) &&
                     (!form.power_of_two || g <= 4096);
  if (!own && !other) {
    const int64_t shown = form.group_size > 0 ? form.group_size : -1;
    return wrong("group size",
                 !form.any_group     ? fmt::format("{}", shown)
                 : form.power_of_two ? fmt::format("a power of two, {}..4096", form.smallest_group)
                                     : fmt::format("at least {}", form.smallest_group),
                 fmt::format("{}", g > 0 ? g : -1));
  }
  if (!form.typed_scales && spec.scale_dtype != DType::kF32) {
    return wrong("scale type", "float32 or nothing", std::string(tensor::dtype_name(spec.scale_dtype)));
  }
  if (spec.per_tensor) return internal_error("a form says itself what shares a scale");
  return {};
}

std::string describe_form(const GridSpec& spec) {
  const Form& form = *spec.form;
  std::string text(form.codes);
  if (form.widths.size() > 1) text += fmt::format("{}", spec.bits);
  if (spec.group_size > 0) text += fmt::format(" g{}", spec.group_size);
  if (!form.words.empty()) text += " " + std::string(form.words);
  return text;
}

Result<tensor::QuantizedTensor> quantize_form(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                              std::string format, ThreadPool& pool) {
  TARE_TRY(check(spec));
  TARE_TRY(check_finite(w, n, k));
  TARE_ASSIGN(const tensor::QuantizedTensor made, spec.form->quantize(spec, w, n, k, pool));
  tensor::QuantizedFields fields = made.fields();
  fields.origin.format = std::move(format);
  return tensor::QuantizedTensor::make(std::move(fields));
}

}  // namespace tare::quantize
