#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

/// How keys and values lie in a page of the KV cache: the one definition that the store, the attention kernels and the
/// accounting share.
///
/// A page of one layer holds `block_size` tokens; inside it every kv head has one K side and one V side:
///
///     page       |head 0: K side, V side|head 1: K side, V side| ...
///     one side   |codes|f16 scale [block_size]|f16 zero [block_size]|      scale and zero only where the form has them
///
/// Codes, t = token in the block, c = channel (block_size >= 16):
///
///     float and fp8   K [t/16][c][t%16]                 V [t][c]
///     int8            K [t/16][c/4][t%16][c%4]          V [t/4][c][t%4]
///     int4            K [t/16][c/8][t%16][c%4]          V [t/8][c][t%4]
///                     low nibble c%8 < 4, else high     low nibble t%8 < 4, else high
///
/// so that K yields scores for 16 tokens at a time and V outputs for neighbouring channels, without shuffles. Blocks of
/// fewer than 16 tokens are plain [t][c] (int4: even channel in the low nibble). Integer codes are padded to a multiple
/// of 8 channels with code 0.
namespace tare::kernels {

enum class KvType { kF32, kF16, kBF16, kE4M3, kE5M2, kInt8, kInt4 };

bool is_integer(KvType type);
bool is_fp8(KvType type);
/// "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"
std::string_view kv_type_name(KvType type);

/// The form of one side. int8 and int4 always carry a scale and a zero per token and head; fp8 carries a scale per
/// token and head when `scale_in_page`, and otherwise uses a static one that is kept outside.
struct KvForm {
  KvType type = KvType::kF16;
  bool scale_in_page = false;  // fp8 only

  bool has_scale() const { return is_integer(type) || (is_fp8(type) && scale_in_page); }
  bool has_zero() const { return is_integer(type); }
  bool operator==(const KvForm&) const = default;
};

enum class KvSide { kKey, kValue };

/// Sizes of one side of one head in one page.
struct KvPageLayout {
  KvForm form;
  KvSide side = KvSide::kKey;
  int64_t head_dim = 0;
  int64_t padded_dim = 0;  // integer forms: head_dim up to a multiple of 8; else head_dim
  int64_t block_size = 0;
  int64_t code_bytes = 0;
  int64_t scale_offset = 0;  // bytes from the start of the side
  int64_t zero_offset = 0;
  int64_t bytes = 0;  // the whole side
};

/// block_size: a power of two. head_dim >= 1.
KvPageLayout kv_page_layout(KvForm form, KvSide side, int64_t head_dim, int64_t block_size);

/// Bytes that one token of one head takes on one side, scales included: padded_dim * bits / 8 + 2 (scale) + 2 (zero).
int64_t kv_bytes_per_token(KvForm form, int64_t head_dim);

/// Where the code of (token, channel) is.
struct CodePlace {
  int64_t byte = 0;
  int shift = 0;  // int4: 0 or 4
};
CodePlace code_place(const KvPageLayout& layout, int64_t token, int64_t channel);

/// The quantizer of one vector: what is stored and what it means.
///
///     int8, int4 (L = 255, 15)   zero = f16 below min, scale = f16 above (max - zero) / L, 0 -> 1
///                                code = clamp(rne((x - zero) / scale), 0, L),   x' = scale * code + zero
///     fp8, scale in page         scale = f16 above amax / largest, 0 -> 1;  code = rne(x / scale),  x' = scale * code
///     fp8, static                the same with the given scale, saturating
///     f32, f16, bf16             rounded to nearest even, beyond the largest to inf
///
/// Rounding scale and zero outward before coding keeps every x inside the range, so |x - x'| <= scale / 2 for integer
/// codes. A vector that holds NaN or inf, or whose scale or zero is beyond f16, gets scale NaN (fp8 with a static
/// scale: NaN codes), so that it is seen in the output. x' is rounded after the product and after the sum. Source:
/// QServe (arXiv:2405.04532) section 4.2 for granularity and storage; outward rounding and the guards are ours.
struct KvScale {
  uint16_t scale = 0;  // f16
  uint16_t zero = 0;   // f16
};
KvScale choose_kv_scale(KvForm form, const float* x, int64_t count);
/// The same for finite values whose smallest is lo and whose largest is hi.
KvScale kv_scale_of_range(KvForm form, float lo, float hi);
/// Largest code of an integer form.
int32_t kv_largest_code(KvForm form);

/// Writes one token's vector x [head_dim] into a side. Bytes of other tokens are kept. static_scale: fp8 without scale
/// in page, else ignored.
void write_kv(const KvPageLayout& layout, std::byte* side, int64_t token, const float* x, float static_scale);

/// Reads one token's vector back: out [head_dim].
void read_kv(const KvPageLayout& layout, const std::byte* side, int64_t token, float static_scale, float* out);

}  // namespace tare::kernels
