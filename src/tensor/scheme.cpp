#include "tensor/scheme.h"

#include <fmt/format.h>

namespace tare::tensor {

std::string describe(const QuantSpec& spec) {
  std::string text;
  switch (spec.kind) {
    case CodeKind::kUint:
      text = fmt::format("u{}", spec.bits);
      break;
    case CodeKind::kInt:
      text = fmt::format("s{}", spec.bits);
      break;
    case CodeKind::kE4M3:
      text = "e4m3";
      break;
    case CodeKind::kE5M2:
      text = "e5m2";
      break;
    case CodeKind::kE2M1:
      text = "e2m1";
      break;
    case CodeKind::kLut:
      text = fmt::format("lut{}", spec.bits);
      break;
    case CodeKind::kVq:
      text = fmt::format("vq{}", spec.bits);
      break;
  }
  text += spec.group_n > 1 ? fmt::format(" block {}x{}", spec.group_n, spec.group_size)
                           : fmt::format(" g{}", spec.group_size);
  if (spec.rule == Rule::kIntegerFirst) text += spec.round_inner ? " rounded" : " progressive";
  if (spec.rule == Rule::kNested) text += " nested";
  if (spec.zero == ZeroKind::kInteger) text += " +zero";
  if (spec.zero == ZeroKind::kFloat) text += " +float-zero";
  if (spec.has_min) text += " +min";
  if (spec.act_order) text += " act-order";
  return text;
}

std::string describe(const ActivationSpec& spec) {
  const char* type = "none";
  switch (spec.type) {
    case ActivationType::kNone:
      return type;
    case ActivationType::kS8:
      type = "s8";
      break;
    case ActivationType::kU8:
      type = "u8";
      break;
    case ActivationType::kS4:
      type = "s4";
      break;
    case ActivationType::kE4M3:
      type = "e4m3";
      break;
    case ActivationType::kE2M1:
      type = "e2m1";
      break;
  }
  std::string text = fmt::format("{} {}", type, spec.dynamic ? "dynamic" : "static");
  switch (spec.granularity) {
    case ActivationGranularity::kTensor:
      text += " per tensor";
      break;
    case ActivationGranularity::kToken:
      text += " per token";
      break;
    case ActivationGranularity::kTokenGroup:
      text += fmt::format(" per token and {} channels", spec.group_size);
      break;
  }
  if (!spec.symmetric || spec.zero != 0) text += " asymmetric";
  if (spec.outlier_threshold > 0) text += fmt::format(", outliers from {} on apart", spec.outlier_threshold);
  return text;
}

}  // namespace tare::tensor
