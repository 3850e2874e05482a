#include "checkpoints/gguf_blocks.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/checked.h"

namespace tare::checkpoints {

using tensor::CodeKind;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantSpec;

namespace {

void copy_half(uint8_t* out, const uint8_t* in) {
  std::memcpy(out, in, 2);
}

// Packed nibbles in natural order from ggml's halves: low nibbles are elements 0..15, high ones 16..31.
void nibbles_from_halves(const uint8_t* qs, uint8_t* out) {
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<uint8_t>((qs[2 * i] & 15) | (qs[2 * i + 1] & 15) << 4);
    out[8 + i] = static_cast<uint8_t>(qs[2 * i] >> 4 | (qs[2 * i + 1] & 0xf0));
  }
}

// `count` codes of one byte each, packed LSB first (count * bits is a multiple of 64).
void pack_codes(const uint8_t* codes, int count, int bits, uint8_t* out) {
  uint64_t window = 0;
  int filled = 0;
  for (int i = 0; i < count; ++i) {
    window |= static_cast<uint64_t>(codes[i]) << filled;
    filled += bits;
    while (filled >= 8) {
      *out++ = static_cast<uint8_t>(window);
      window >>= 8;
      filled -= 8;
    }
  }
}

void unpack_q4_0(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  nibbles_from_halves(in + 2, out.codes);
}

void unpack_q4_1(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  copy_half(out.b, in + 2);
  nibbles_from_halves(in + 4, out.codes);
}

void five_bits(const uint8_t* qh, const uint8_t* qs, uint8_t* out) {
  uint32_t high;
  std::memcpy(&high, qh, 4);
  uint8_t codes[32];
  for (int j = 0; j < 16; ++j) {
    codes[j] = static_cast<uint8_t>((qs[j] & 15) | ((high >> j) & 1) << 4);
    codes[j + 16] = static_cast<uint8_t>(qs[j] >> 4 | ((high >> (j + 16)) & 1) << 4);
  }
  pack_codes(codes, 32, 5, out);
}

void unpack_q5_0(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  five_bits(in + 2, in + 6, out.codes);
}

void unpack_q5_1(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  copy_half(out.b, in + 2);
  five_bits(in + 4, in + 8, out.codes);
}

void unpack_q8_0(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  std::memcpy(out.codes, in + 2, 32);
}

// The minimum is subtracted in ggml and added here: the f16 keeps its digits and changes its sign.
void copy_half_negated(uint8_t* out, const uint8_t* in) {
  out[0] = in[0];
  out[1] = in[1] ^ 0x80;
}

void unpack_q2_k(const uint8_t* in, const BlockOut& out) {
  for (int i = 0; i < 16; ++i) {
    out.a[i] = in[i] & 15;
    out.b[i] = in[i] >> 4;
  }
  const uint8_t* qs = in + 16;
  uint8_t codes[256];
  for (int e = 0; e < 256; ++e) codes[e] = (qs[32 * (e / 128) + e % 32] >> 2 * (e % 128 / 32)) & 3;
  pack_codes(codes, 256, 2, out.codes);
  copy_half(out.outer, in + 80);
  copy_half_negated(out.outer_min, in + 82);
}

void unpack_q3_k(const uint8_t* in, const BlockOut& out) {
  const uint8_t* hmask = in;
  const uint8_t* qs = in + 32;
  const uint8_t* s = in + 96;
  uint8_t codes[256];
  for (int e = 0; e < 256; ++e) {
    const int h = e / 128, t = e % 128 / 32, l = e % 32;
    codes[e] = static_cast<uint8_t>(((qs[32 * h + l] >> 2 * t) & 3) | ((hmask[l] >> (4 * h + t)) & 1) << 2);
  }
  pack_codes(codes, 256, 3, out.codes);
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    const int high = (s[8 + i % 4] >> 2 * (i / 4)) & 3;
    out.a[i] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  copy_half(out.outer, in + 108);
}

// The 6-bit scales and minima of Q4_K and Q5_K: 8 of each in 12 bytes.
void six_bit_pairs(const uint8_t* s, uint8_t* scales, uint8_t* minima) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = s[j] & 63;
    minima[j] = s[j + 4] & 63;
    scales[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    minima[j + 4] = static_cast<uint8_t>(s[j + 8] >> 4 | (s[j + 4] >> 6) << 4);
  }
}

void unpack_q4_k(const uint8_t* in, const BlockOut& out) {
  copy_half(out.outer, in);
  copy_half_negated(out.outer_min, in + 2);
  six_bit_pairs(in + 4, out.a, out.b);
  const uint8_t* qs = in + 16;
  for (int c = 0; c < 4; ++c, qs += 32) {
    uint8_t* low = out.codes + 32 * c;
    for (int i = 0; i < 16; ++i) {
      low[i] = static_cast<uint8_t>((qs[2 * i] & 15) | (qs[2 * i + 1] & 15) << 4);
      low[16 + i] = static_cast<uint8_t>(qs[2 * i] >> 4 | (qs[2 * i + 1] & 0xf0));
    }
  }
}

void unpack_q5_k(const uint8_t* in, const BlockOut& out) {
  copy_half(out.outer, in);
  copy_half_negated(out.outer_min, in + 2);
  six_bit_pairs(in + 4, out.a, out.b);
  const uint8_t* qh = in + 16;
  const uint8_t* qs = in + 48;
  uint8_t codes[256];
  for (int e = 0; e < 256; ++e) {
    const int l = e % 32, sub = e / 32;
    const int low = (qs[32 * (e / 64) + l] >> 4 * (sub & 1)) & 15;
    codes[e] = static_cast<uint8_t>(low | ((qh[l] >> sub) & 1) << 4);
  }
  pack_codes(codes, 256, 5, out.codes);
}

void unpack_q6_k(const uint8_t* in, const BlockOut& out) {
  const uint8_t* ql = in;
  const uint8_t* qh = in + 128;
  uint8_t codes[256];
  for (int e = 0; e < 256; ++e) {
    const int h = e / 128, t = e % 128 / 32, l = e % 32;
    const int low = (ql[64 * h + 32 * (t & 1) + l] >> 4 * (t >> 1)) & 15;
    codes[e] = static_cast<uint8_t>(low | ((qh[32 * h + l] >> 2 * t) & 3) << 4);
  }
  pack_codes(codes, 256, 6, out.codes);
  std::memcpy(out.a, in + 192, 16);
  copy_half(out.outer, in + 208);
}

void unpack_iq4_xs(const uint8_t* in, const BlockOut& out) {
  copy_half(out.outer, in);
  const int high = in[2] | in[3] << 8;
  for (int i = 0; i < 8; ++i) {
    const int scale = ((in[4 + i / 2] >> 4 * (i % 2)) & 15) | ((high >> 2 * i) & 3) << 4;
    out.a[i] = static_cast<uint8_t>(scale - 32);
    nibbles_from_halves(in + 8 + 16 * i, out.codes + 16 * i);
  }
}

void unpack_mxfp4(const uint8_t* in, const BlockOut& out) {
  out.a[0] = in[0];
  nibbles_from_halves(in + 1, out.codes);
}

// 64 elements, four scales: E4M3 without sign, where 0x7f means 0.
void unpack_nvfp4(const uint8_t* in, const BlockOut& out) {
  for (int s = 0; s < 4; ++s) {
    out.a[s] = (in[s] & 0x7f) == 0x7f ? 0 : in[s] & 0x7f;
    const uint8_t* qs = in + 4 + 8 * s;
    uint8_t* codes = out.codes + 8 * s;
    for (int i = 0; i < 4; ++i) {
      codes[i] = static_cast<uint8_t>((qs[2 * i] & 15) | (qs[2 * i + 1] & 15) << 4);
      codes[4 + i] = static_cast<uint8_t>(qs[2 * i] >> 4 | (qs[2 * i + 1] & 0xf0));
    }
  }
}

// Five base-3 digits a byte, as the fraction byte / 256.
void unpack_tq1_0(const uint8_t* in, const BlockOut& out) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const uint8_t* qs = in;
  const uint8_t* qh = in + 48;
  uint8_t codes[256];
  for (int e = 0; e < 256; ++e) {
    const uint8_t byte = e < 160 ? qs[e % 32] : e < 240 ? qs[32 + (e - 160) % 16] : qh[(e - 240) % 4];
    const int power = e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
    const auto shifted = static_cast<uint8_t>(byte * kPowers[power]);
    codes[e] = static_cast<uint8_t>(shifted * 3 >> 8);
  }
  pack_codes(codes, 256, 2, out.codes);
  copy_half(out.a, in + 52);
}

void unpack_tq2_0(const uint8_t* in, const BlockOut& out) {
  uint8_t codes[256];
  for (int e = 0; e < 256; ++e) codes[e] = (in[32 * (e / 128) + e % 32] >> 2 * (e % 128 / 32)) & 3;
  pack_codes(codes, 256, 2, out.codes);
  copy_half(out.a, in + 64);
}

// Bit 1 means d, bit 0 means -d: the code times 2 minus 1.
void unpack_q1_0(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  std::memcpy(out.codes, in + 2, 16);
}

void unpack_q2_0(const uint8_t* in, const BlockOut& out) {
  copy_half(out.a, in);
  std::memcpy(out.codes, in + 2, 16);
}

constexpr std::array<float, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::array<float, 2> kSigns = {-1, 1};

constexpr auto kF16 = GridType::kF16;
constexpr std::array<BlockLayout, 18> kLayouts = {{
    // name     codes            bits inner  a              b                outer  zero  unpack
    {"Q4_0", CodeKind::kUint, 4, 32, kF16, {}, false, 8.0f, unpack_q4_0},
    {"Q4_1", CodeKind::kUint, 4, 32, kF16, kF16, false, {}, unpack_q4_1},
    {"Q5_0", CodeKind::kUint, 5, 32, kF16, {}, false, 16.0f, unpack_q5_0},
    {"Q5_1", CodeKind::kUint, 5, 32, kF16, kF16, false, {}, unpack_q5_1},
    {"Q8_0", CodeKind::kInt, 8, 32, kF16, {}, false, {}, unpack_q8_0},
    {"Q2_K", CodeKind::kUint, 2, 16, GridType::kU4, GridType::kU4, true, {}, unpack_q2_k},
    {"Q3_K", CodeKind::kUint, 3, 16, GridType::kS6, {}, true, 4.0f, unpack_q3_k},
    {"Q4_K", CodeKind::kUint, 4, 32, GridType::kU6, GridType::kU6, true, {}, unpack_q4_k},
    {"Q5_K", CodeKind::kUint, 5, 32, GridType::kU6, GridType::kU6, true, {}, unpack_q5_k},
    {"Q6_K", CodeKind::kUint, 6, 16, GridType::kS8, {}, true, 32.0f, unpack_q6_k},
    {"IQ4_NL", CodeKind::kLut, 4, 32, kF16, {}, false, {}, unpack_q4_0},
    {"IQ4_XS", CodeKind::kLut, 4, 32, GridType::kS6, {}, true, {}, unpack_iq4_xs},
    {"MXFP4", CodeKind::kE2M1, 4, 32, GridType::kE8M0, {}, false, {}, unpack_mxfp4},
    {"NVFP4", CodeKind::kE2M1, 4, 16, GridType::kE4M3, {}, false, {}, unpack_nvfp4},
    {"TQ1_0", CodeKind::kUint, 2, 256, kF16, {}, false, 1.0f, unpack_tq1_0},
    {"TQ2_0", CodeKind::kUint, 2, 256, kF16, {}, false, 1.0f, unpack_tq2_0},
    {"Q1_0", CodeKind::kLut, 1, 128, kF16, {}, false, {}, unpack_q1_0},
    {"Q2_0", CodeKind::kUint, 2, 64, kF16, {}, false, 1.0f, unpack_q2_0},
}};

const BlockLayout* find_layout(const io::GgmlType& type) {
  for (const BlockLayout& layout : kLayouts) {
    if (layout.name == type.name) return &layout;
  }
  return nullptr;
}

}  // namespace

std::span<const BlockLayout> ggml_layouts() {
  return kLayouts;
}

std::span<const float> ggml_lut(int bits) {
  if (bits == 1) return kSigns;
  return kIq4Values;
}

Result<std::variant<DType, QuantSpec>> ggml_form(const io::GgmlType& type, int64_t n, int64_t k, bool scaled,
                                                 std::string_view name) {
  using Form = std::variant<DType, QuantSpec>;
  if (type.name == "F32") return Form(DType::kF32);
  if (type.name == "F16") return Form(DType::kF16);
  if (type.name == "BF16") return Form(DType::kBF16);
  const BlockLayout* layout = find_layout(type);
  if (!layout) {
    const bool lattice = type.name.starts_with("IQ");
    return unsupported(fmt::format("GGUF tensor type {} is not supported", type.name),
                       {.where = std::string(name),
                        .found = lattice ? "a lattice codebook" : "a type that models are not stored in",
                        .hint = lattice ? "use a file quantized to IQ4_XS, Q3_K or another K-quant" : ""});
  }
  QuantSpec spec{.kind = layout->kind, .bits = layout->bits};
  spec.group_n = 1;
  spec.group_size = std::min<int64_t>(layout->inner, k);
  if (layout->outer) {
    spec.has_outer_scale = true;
    spec.outer_group_n = 1;
    spec.outer_group_size = std::min<int64_t>(type.block_size, k);
  }
  if (scaled) {
    spec.has_outer_scale = true;
    spec.outer_group_n = n;
    spec.outer_group_size = k;
  }
  if (layout->zero) {
    spec.zero = tensor::ZeroKind::kConstant;
    spec.zero_constant = *layout->zero;
  }
  spec.has_min = layout->b.has_value();
  return Form(spec);
}

Result<tensor::QuantizedTensor> repack_ggml(const io::GgmlType& type, const Buffer& data, int64_t n, int64_t k,
                                            const std::vector<int32_t>& row_source, std::optional<float> tensor_scale) {
  const BlockLayout* layout = find_layout(type);
  if (!layout) return unsupported(fmt::format("GGUF tensor type {} has no quantized form", type.name));
  const int64_t blocks = k / type.block_size;  // io has checked that rows are whole blocks
  const int64_t row_bytes = blocks * type.block_bytes;
  const int64_t inner = type.block_size / layout->inner;
  const auto size = [](int64_t count) { return static_cast<size_t>(count); };

  const int64_t block_codes = type.block_size * layout->bits / 8;
  const int64_t a_bytes = inner * grid_element_bytes(layout->a);
  const int64_t b_bytes = layout->b ? inner * grid_element_bytes(*layout->b) : 0;
  std::vector<uint8_t> codes(size(n * blocks * block_codes));
  std::vector<uint8_t> a(size(n * blocks * a_bytes));
  std::vector<uint8_t> b(size(n * blocks * b_bytes));
  std::vector<uint8_t> outer(layout->outer ? size(n * blocks * 2) : 0);
  std::vector<uint8_t> outer_min(layout->outer && layout->b ? size(n * blocks * 2) : 0);

  for (int64_t row = 0; row < n; ++row) {
    const int64_t from = row_source.empty() ? row : row_source[size(row)];
    const auto* in = reinterpret_cast<const uint8_t*>(data.data()) + from * row_bytes;
    for (int64_t i = 0; i < blocks; ++i, in += type.block_bytes) {
      const int64_t block = row * blocks + i;
      layout->unpack(in, {.codes = codes.data() + block * block_codes,
                          .a = a.data() + block * a_bytes,
                          .b = b.empty() ? nullptr : b.data() + block * b_bytes,
                          .outer = outer.empty() ? nullptr : outer.data() + block * 2,
                          .outer_min = outer_min.empty() ? nullptr : outer_min.data() + block * 2});
    }
  }

  tensor::QuantizedFields f{.n = n, .k = k, .kind = layout->kind, .bits = layout->bits};
  f.codes = Buffer::own(std::move(codes));
  if (layout->kind == CodeKind::kLut) {
    const std::span<const float> lut = ggml_lut(layout->bits);
    f.lut.assign(lut.begin(), lut.end());
  }
  if (layout->zero) f.z = *layout->zero;
  TARE_ASSIGN(f.a, Grid::make(layout->a, n, k, 1, layout->inner, Buffer::own(std::move(a))));
  if (layout->b) {
    TARE_ASSIGN(f.b, Grid::make(*layout->b, n, k, 1, layout->inner, Buffer::own(std::move(b))));
  }
  if (layout->outer) {
    TARE_ASSIGN(f.A, Grid::make(kF16, n, k, 1, type.block_size, Buffer::own(std::move(outer))));
    if (layout->b) {
      TARE_ASSIGN(f.B, Grid::make(kF16, n, k, 1, type.block_size, Buffer::own(std::move(outer_min))));
    }
  }
  if (tensor_scale) {
    TARE_ASSIGN(f.A, Grid::make(GridType::kF32, n, k, n, k, Buffer::own(std::vector<float>{*tensor_scale})));
    f.code_first = true;
  }
  f.origin = {.format = fmt::format("gguf {}", type.name), .bytes = n * row_bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

}  // namespace tare::checkpoints
