#include "kvcache/kv_format.h"

#include <fmt/format.h>

namespace tare::kvcache {

namespace {

using kernels::KvForm;
using kernels::KvType;

struct NameRow {
  std::string_view name;
  KvType type;
};
constexpr NameRow kNames[] = {
    {"f32", KvType::kF32},       {"f16", KvType::kF16},       {"bf16", KvType::kBF16},     {"fp8", KvType::kE4M3},
    {"fp8_e4m3", KvType::kE4M3}, {"fp8_e5m2", KvType::kE5M2}, {"int8", KvType::kInt8},     {"int4", KvType::kInt4},
    {"float32", KvType::kF32},   {"float16", KvType::kF16},   {"bfloat16", KvType::kBF16},
};

Result<KvForm> parse_side(std::string_view name, const KvForm& automatic, KvScaleRule rule, std::string_view text) {
  if (name == "auto") return automatic;
  std::string known = "auto";
  for (const NameRow& row : kNames) {
    if (row.name == name) {
      return KvForm{row.type, kernels::is_fp8(row.type) && rule == KvScaleRule::kCalculate};
    }
    known += fmt::format(", {}", row.name);
  }
  return invalid_input("unknown KV cache type",
                       {.where = "--kv-cache-dtype", .expected = known, .found = fmt::format("'{}'", text)});
}

std::string side_text(const KvForm& form) {
  return fmt::format("{}{}", kernels::kv_type_name(form.type), form.scale_in_page ? "+calculate" : "");
}

}  // namespace

int64_t KvFormat::bytes_per_token(int64_t head_dim) const {
  return kernels::kv_bytes_per_token(k, head_dim) + kernels::kv_bytes_per_token(v, head_dim);
}

std::string describe(const KvFormat& format) {
  if (format.k == format.v) return side_text(format.k);
  return fmt::format("{},{}", side_text(format.k), side_text(format.v));
}

Result<KvFormat> parse_kv_format(std::string_view text, const KvFormat& automatic, KvScaleRule rule) {
  const size_t comma = text.find(',');
  const std::string_view first = text.substr(0, comma);
  const std::string_view second = comma == std::string_view::npos ? first : text.substr(comma + 1);
  KvFormat out;
  TARE_ASSIGN(out.k, parse_side(first, automatic.k, rule, text));
  TARE_ASSIGN(out.v, parse_side(second, automatic.v, rule, text));
  return out;
}

}  // namespace tare::kvcache
