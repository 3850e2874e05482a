#include "kernels/kv_page.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "numerics/rounding.h"

namespace tare::kernels {

namespace {

struct TypeRow {
  KvType type;
  std::string_view name;
  int bits;
  float levels;  // integer: largest code; fp8: largest finite value
};
constexpr TypeRow kTypes[] = {
    {KvType::kF32, "f32", 32, 0},        {KvType::kF16, "f16", 16, 0},          {KvType::kBF16, "bf16", 16, 0},
    {KvType::kE4M3, "fp8_e4m3", 8, 448}, {KvType::kE5M2, "fp8_e5m2", 8, 57344}, {KvType::kInt8, "int8", 8, 255},
    {KvType::kInt4, "int4", 4, 15},
};

const TypeRow& row(KvType type) {
  return kTypes[static_cast<size_t>(type)];
}

constexpr int64_t kTileTokens = 16;
constexpr float kLargestF16 = 65504.0f;
constexpr uint16_t kNanF16 = 0x7e00;
constexpr uint16_t kOneF16 = 0x3c00;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

/// The smallest f16 >= x (x >= 0), or nothing above the largest finite one.
std::optional<uint16_t> f16_above(float x) {
  if (!(x <= kLargestF16)) return std::nullopt;
  uint16_t code = numerics::f32_to_f16(x);
  if (numerics::f16_to_f32(code) < x) ++code;
  return code;
}

/// The largest f16 <= x, or nothing outside the finite ones.
std::optional<uint16_t> f16_below(float x) {
  if (!(std::fabs(x) <= kLargestF16)) return std::nullopt;
  const uint16_t code = numerics::f32_to_f16(x);
  if (!(numerics::f16_to_f32(code) > x)) return code;
  // One step down: away from zero for negative numbers, towards it for positive ones (0 is never above x >= 0).
  if (code == 0x8000 || code == 0) return uint16_t{0x8001};
  return static_cast<uint16_t>((code & 0x8000) != 0 ? code + 1 : code - 1);
}

float decode_float(KvType type, const std::byte* codes, int64_t index) {
  switch (type) {
    case KvType::kF32:
      return load<float>(codes + 4 * index);
    case KvType::kF16:
      return numerics::f16_to_f32(load<uint16_t>(codes + 2 * index));
    case KvType::kBF16:
      return numerics::bf16_to_f32(load<uint16_t>(codes + 2 * index));
    case KvType::kE4M3:
      return numerics::E4M3::decode(static_cast<uint32_t>(codes[index]));
    default:
      return numerics::E5M2::decode(static_cast<uint32_t>(codes[index]));
  }
}

/// Saturation is for large numbers; an inf is an accident that has to be seen.
float finite_or_nan(float x) {
  return std::isfinite(x) ? x : std::numeric_limits<float>::quiet_NaN();
}

void encode_float(KvType type, std::byte* codes, int64_t index, float x) {
  switch (type) {
    case KvType::kF32:
      return store(codes + 4 * index, x);
    case KvType::kF16:
      return store(codes + 2 * index, numerics::f32_to_f16(x));
    case KvType::kBF16:
      return store(codes + 2 * index, numerics::f32_to_bf16(x));
    case KvType::kE4M3:
      return store(codes + index, static_cast<uint8_t>(numerics::E4M3::encode_saturating(finite_or_nan(x))));
    default:
      return store(codes + index, static_cast<uint8_t>(numerics::E5M2::encode_saturating(finite_or_nan(x))));
  }
}

}  // namespace

bool is_integer(KvType type) {
  return type == KvType::kInt8 || type == KvType::kInt4;
}
bool is_fp8(KvType type) {
  return type == KvType::kE4M3 || type == KvType::kE5M2;
}
std::string_view kv_type_name(KvType type) {
  return row(type).name;
}

KvPageLayout kv_page_layout(KvForm form, KvSide side, int64_t head_dim, int64_t block_size) {
  assert(head_dim >= 1 && block_size >= 1 && (block_size & (block_size - 1)) == 0);
  KvPageLayout out;
  out.form = form;
  out.side = side;
  out.head_dim = head_dim;
  out.padded_dim = is_integer(form.type) ? round_up(head_dim, 8) : head_dim;
  out.block_size = block_size;
  out.code_bytes = block_size * out.padded_dim * row(form.type).bits / 8;
  out.scale_offset = out.code_bytes;
  out.zero_offset = out.scale_offset + (form.has_scale() ? 2 * block_size : 0);
  out.bytes = out.zero_offset + (form.has_zero() ? 2 * block_size : 0);
  return out;
}

int64_t kv_bytes_per_token(KvForm form, int64_t head_dim) {
  return kv_page_layout(form, KvSide::kKey, head_dim, 16).bytes / 16;
}

CodePlace code_place(const KvPageLayout& l, int64_t t, int64_t c) {
  const bool tiled = l.block_size >= kTileTokens;
  const int64_t d = l.padded_dim;
  if (l.form.type == KvType::kInt4) {
    if (!tiled) return {t * (d / 2) + c / 2, static_cast<int>(c % 2) * 4};
    if (l.side == KvSide::kKey) return {((t / 16) * (d / 8) + c / 8) * 64 + (t % 16) * 4 + c % 4, c % 8 < 4 ? 0 : 4};
    return {((t / 8) * d + c) * 4 + t % 4, t % 8 < 4 ? 0 : 4};
  }
  const int64_t bytes = row(l.form.type).bits / 8;
  if (!tiled) return {(t * d + c) * bytes};
  if (l.form.type == KvType::kInt8) {
    if (l.side == KvSide::kKey) return {((t / 16) * (d / 4) + c / 4) * 64 + (t % 16) * 4 + c % 4};
    return {((t / 4) * d + c) * 4 + t % 4};
  }
  if (l.side == KvSide::kKey) return {(((t / 16) * d + c) * 16 + t % 16) * bytes};
  return {(t * d + c) * bytes};
}

KvScale choose_kv_scale(KvForm form, const float* x, int64_t count) {
  float lo = std::numeric_limits<float>::infinity();
  float hi = -lo;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
  }
  if (!finite) return {kNanF16, kNanF16};
  return kv_scale_of_range(form, lo, hi);
}

KvScale kv_scale_of_range(KvForm form, float lo, float hi) {
  float span = std::max(std::fabs(lo), std::fabs(hi));
  std::optional<uint16_t> zero = uint16_t{0};
  if (form.has_zero()) {
    zero = f16_below(lo);
    if (!zero) return {kNanF16, kNanF16};
    span = hi - numerics::f16_to_f32(*zero);
  }
  const std::optional<uint16_t> scale = span > 0 ? f16_above(span / row(form.type).levels) : kOneF16;
  if (!scale) return {kNanF16, kNanF16};
  return {*scale, *zero};
}

int32_t kv_largest_code(KvForm form) {
  return static_cast<int32_t>(row(form.type).levels);
}

void write_kv(const KvPageLayout& l, std::byte* side, int64_t token, const float* x, float static_scale) {
  KvScale stored;
  float scale = is_fp8(l.form.type) ? static_scale : 1.0f;
  if (l.form.has_scale()) {
    stored = choose_kv_scale(l.form, x, l.head_dim);
    store(side + l.scale_offset + 2 * token, stored.scale);
    if (l.form.has_zero()) store(side + l.zero_offset + 2 * token, stored.zero);
    scale = numerics::f16_to_f32(stored.scale);
  }
  if (!is_integer(l.form.type)) {
    for (int64_t c = 0; c < l.head_dim; ++c) {
      encode_float(l.form.type, side + code_place(l, token, c).byte, 0, is_fp8(l.form.type) ? x[c] / scale : x[c]);
    }
    return;
  }
  const float zero = numerics::f16_to_f32(stored.zero);
  const int32_t largest = kv_largest_code(l.form);
  const uint32_t mask = l.form.type == KvType::kInt4 ? 0xf : 0xff;
  for (int64_t c = 0; c < l.padded_dim; ++c) {
    const int32_t code = c < l.head_dim ? numerics::round_clamp((x[c] - zero) / scale, 0, largest) : 0;
    const CodePlace place = code_place(l, token, c);
    const auto old = static_cast<uint32_t>(side[place.byte]);
    side[place.byte] =
        static_cast<std::byte>((old & ~(mask << place.shift)) | (static_cast<uint32_t>(code) << place.shift));
  }
}

void read_kv(const KvPageLayout& l, const std::byte* side, int64_t token, float static_scale, float* out) {
  float scale = is_fp8(l.form.type) ? static_scale : 1.0f;
  float zero = 0;
  if (l.form.has_scale()) scale = numerics::f16_to_f32(load<uint16_t>(side + l.scale_offset + 2 * token));
  if (l.form.has_zero()) zero = numerics::f16_to_f32(load<uint16_t>(side + l.zero_offset + 2 * token));
  const uint32_t mask = l.form.type == KvType::kInt4 ? 0xf : 0xff;
  for (int64_t c = 0; c < l.head_dim; ++c) {
    const CodePlace place = code_place(l, token, c);
    if (is_integer(l.form.type)) {
      const uint32_t code = (static_cast<uint32_t>(side[place.byte]) >> place.shift) & mask;
      out[c] = scale * static_cast<float>(code) + zero;
    } else {
      const float value = decode_float(l.form.type, side + place.byte, 0);
      out[c] = is_fp8(l.form.type) ? scale * value : value;
    }
  }
}

}  // namespace tare::kernels
