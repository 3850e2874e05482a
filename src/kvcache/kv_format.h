#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/kv_page.h"

namespace tare::kvcache {

/// The form of keys and of values in the cache. K and V are chosen together or apart.
struct KvFormat {
  kernels::KvForm k;
  kernels::KvForm v;

  /// Bytes that one token takes in one layer, per kv head, K and V together:
  ///
  ///     side(form) = padded_dim * bits / 8 + (2 for a scale in the page) + (2 for a zero in the page)
  ///
  /// int4 at head_dim 128: 2 * (64 + 4) = 136; f16: 512.
  int64_t bytes_per_token(int64_t head_dim) const;

  bool operator==(const KvFormat&) const = default;
};

/// "int8", or "int8,int4" when K and V differ. fp8 with its scale in the page: "fp8_e4m3+calculate".
std::string describe(const KvFormat& format);

/// How an fp8 cache gets its scales.
enum class KvScaleRule {
  kCheckpoint,  // static, from the checkpoint; refused when missing or partial
  kCalculate,   // per token and head, inside the page (--calculate-kv-scales)
  kOne,         // 1.0, said aloud (--kv-scale=one)
};

/// Parses --kv-cache-dtype: "auto", one name for both, or "K,V". "auto" is `automatic`: the checkpoint's own form, or
/// the type of the activations. Names: f32 float32 f16 float16 bf16 bfloat16 fp8 (= fp8_e4m3) fp8_e4m3 fp8_e5m2 int8
/// int4. Errors: an unknown name.
Result<KvFormat> parse_kv_format(std::string_view text, const KvFormat& automatic, KvScaleRule rule);

}  // namespace tare::kvcache
