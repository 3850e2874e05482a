#include "checkpoints/gguf_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "checkpoints/affine.h"
#include "checkpoints/gguf_blocks.h"
#include "numerics/mini_float.h"

namespace tare::checkpoints {

using tensor::CodeKind;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;

namespace {

// Parts of one block, as BlockOut names them; codes stand one a byte.
struct BlockIn {
  const uint8_t* codes;
  const uint8_t* a;
  const uint8_t* b;
  const uint8_t* outer;
  const uint8_t* outer_min;
};

using Pack = void (*)(const BlockIn& in, uint8_t* block);

// Elements 0..15 in the low nibbles, 16..31 in the high ones.
void halves_from_codes(const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

// ggml subtracts its minimum where tare adds one.
void put_negated(uint8_t* out, const uint8_t* half) {
  out[0] = half[0];
  out[1] = half[1] ^ 0x80;
}

void pack_q4_0(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  halves_from_codes(in.codes, out + 2);
}

void pack_q4_1(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  std::memcpy(out + 2, in.b, 2);
  halves_from_codes(in.codes, out + 4);
}

void high_bits(const uint8_t* codes, uint8_t* out) {
  uint32_t bits = 0;
  for (int e = 0; e < 32; ++e) bits |= uint32_t{codes[e] >> 4u & 1u} << e;
  std::memcpy(out, &bits, 4);
}

void pack_q5_0(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  high_bits(in.codes, out + 2);
  halves_from_codes(in.codes, out + 6);
}

void pack_q5_1(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  std::memcpy(out + 2, in.b, 2);
  high_bits(in.codes, out + 4);
  halves_from_codes(in.codes, out + 8);
}

void pack_q8_0(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  std::memcpy(out + 2, in.codes, 32);
}

// Two bits an element: four runs of 32 in each half.
void two_bits(const uint8_t* codes, uint8_t* qs) {
  std::memset(qs, 0, 64);
  for (int e = 0; e < 256; ++e) {
    qs[32 * (e / 128) + e % 32] |= static_cast<uint8_t>((codes[e] & 3) << 2 * (e % 128 / 32));
  }
}

void pack_q2_k(const BlockIn& in, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((in.a[i] & 15) | in.b[i] << 4);
  two_bits(in.codes, out + 16);
  std::memcpy(out + 80, in.outer, 2);
  put_negated(out + 82, in.outer_min);
}

void pack_q3_k(const BlockIn& in, uint8_t* out) {
  std::memset(out, 0, 32);
  for (int e = 0; e < 256; ++e) {
    out[e % 32] |= static_cast<uint8_t>((in.codes[e] >> 2 & 1) << (4 * (e / 128) + e % 128 / 32));
  }
  two_bits(in.codes, out + 32);
  uint8_t* s = out + 96;
  std::memset(s, 0, 12);
  for (int i = 0; i < 16; ++i) {
    const auto scale = static_cast<uint8_t>(static_cast<int8_t>(in.a[i]) + 32);
    s[i % 8] |= static_cast<uint8_t>(i < 8 ? scale & 15 : (scale & 15) << 4);
    s[8 + i % 4] |= static_cast<uint8_t>((scale >> 4 & 3) << 2 * (i / 4));
  }
  std::memcpy(out + 108, in.outer, 2);
}

// Eight 6-bit scales and minima in 12 bytes.
void six_bit_pairs(const uint8_t* scales, const uint8_t* minima, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    s[j] = static_cast<uint8_t>((scales[j] & 63) | scales[j + 4] >> 4 << 6);
    s[j + 4] = static_cast<uint8_t>((minima[j] & 63) | minima[j + 4] >> 4 << 6);
    s[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
  }
}

void nibbles_of_64(const uint8_t* codes, uint8_t* qs) {
  std::memset(qs, 0, 128);
  for (int e = 0; e < 256; ++e) {
    qs[32 * (e / 64) + e % 32] |= static_cast<uint8_t>((codes[e] & 15) << 4 * (e / 32 % 2));
  }
}

void pack_q4_k(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.outer, 2);
  put_negated(out + 2, in.outer_min);
  six_bit_pairs(in.a, in.b, out + 4);
  nibbles_of_64(in.codes, out + 16);
}

void pack_q5_k(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.outer, 2);
  put_negated(out + 2, in.outer_min);
  six_bit_pairs(in.a, in.b, out + 4);
  std::memset(out + 16, 0, 32);
  for (int e = 0; e < 256; ++e) out[16 + e % 32] |= static_cast<uint8_t>((in.codes[e] >> 4 & 1) << e / 32);
  nibbles_of_64(in.codes, out + 48);
}

void pack_q6_k(const BlockIn& in, uint8_t* out) {
  std::memset(out, 0, 192);
  for (int e = 0; e < 256; ++e) {
    const int h = e / 128, t = e % 128 / 32, l = e % 32;
    out[64 * h + 32 * (t & 1) + l] |= static_cast<uint8_t>((in.codes[e] & 15) << 4 * (t >> 1));
    out[128 + 32 * h + l] |= static_cast<uint8_t>((in.codes[e] >> 4 & 3) << 2 * t);
  }
  std::memcpy(out + 192, in.a, 16);
  std::memcpy(out + 208, in.outer, 2);
}

void pack_iq4_xs(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.outer, 2);
  std::memset(out + 2, 0, 6);
  int high = 0;
  for (int i = 0; i < 8; ++i) {
    const int scale = static_cast<int8_t>(in.a[i]) + 32;
    out[4 + i / 2] |= static_cast<uint8_t>((scale & 15) << 4 * (i % 2));
    high |= (scale >> 4 & 3) << 2 * i;
    halves_from_codes(in.codes + 32 * i, out + 8 + 16 * i);
  }
  out[2] = static_cast<uint8_t>(high);
  out[3] = static_cast<uint8_t>(high >> 8);
}

void pack_mxfp4(const BlockIn& in, uint8_t* out) {
  out[0] = in.a[0];
  halves_from_codes(in.codes, out + 1);
}

void pack_tq2_0(const BlockIn& in, uint8_t* out) {
  two_bits(in.codes, out);
  std::memcpy(out + 64, in.a, 2);
}

void pack_q1_0(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  std::memset(out + 2, 0, 16);
  for (int e = 0; e < 128; ++e) out[2 + e / 8] |= static_cast<uint8_t>((in.codes[e] & 1) << e % 8);
}

void pack_q2_0(const BlockIn& in, uint8_t* out) {
  std::memcpy(out, in.a, 2);
  std::memset(out + 2, 0, 16);
  for (int e = 0; e < 64; ++e) out[2 + e / 4] |= static_cast<uint8_t>((in.codes[e] & 3) << 2 * (e % 4));
}

struct PackRow {
  std::string_view name;
  Pack pack;
};
constexpr std::array<PackRow, 16> kPacks = {{
    {"Q4_0", pack_q4_0},
    {"Q4_1", pack_q4_1},
    {"Q5_0", pack_q5_0},
    {"Q5_1", pack_q5_1},
    {"Q8_0", pack_q8_0},
    {"Q2_K", pack_q2_k},
    {"Q3_K", pack_q3_k},
    {"Q4_K", pack_q4_k},
    {"Q5_K", pack_q5_k},
    {"Q6_K", pack_q6_k},
    {"IQ4_NL", pack_q4_0},
    {"IQ4_XS", pack_iq4_xs},
    {"MXFP4", pack_mxfp4},
    {"TQ2_0", pack_tq2_0},
    {"Q1_0", pack_q1_0},
    {"Q2_0", pack_q2_0},
}};

const PackRow* find_pack(std::string_view name) {
  const auto row = std::find_if(kPacks.begin(), kPacks.end(), [&](const PackRow& r) { return r.name == name; });
  return row == kPacks.end() ? nullptr : &*row;
}

const BlockLayout& layout_of(const io::GgmlType& type) {
  const auto layouts = ggml_layouts();
  return *std::find_if(layouts.begin(), layouts.end(), [&](const BlockLayout& l) { return l.name == type.name; });
}

bool tiled(const std::optional<Grid>& grid, GridType type, int64_t tile_k) {
  return grid && grid->type == type && grid->tile_n == 1 && grid->tile_k == tile_k && grid->origin_k == 0;
}

bool is_form(const BlockLayout& layout, const io::GgmlType& type, const QuantizedFields& f) {
  if (f.kind != layout.kind || f.bits != layout.bits || f.rule != tensor::Rule::kScaleFirst || f.group_of_k ||
      f.A_divides || f.code_first || f.B_is_A || f.k % type.block_size != 0) {
    return false;
  }
  if (!tiled(f.a, layout.a, layout.inner) || layout.b.has_value() != f.b.has_value()) return false;
  if (layout.b && !tiled(f.b, *layout.b, layout.inner)) return false;
  if (layout.outer != f.A.has_value() || (layout.outer && layout.b.has_value()) != f.B.has_value()) return false;
  if (layout.outer && !tiled(f.A, GridType::kF16, type.block_size)) return false;
  if (f.B && !tiled(f.B, GridType::kF16, type.block_size)) return false;
  const float* zero = std::get_if<float>(&f.z);
  if (layout.zero ? !zero || *zero != *layout.zero : !std::holds_alternative<std::monostate>(f.z)) return false;
  const std::span<const float> lut = ggml_lut(layout.bits);
  return layout.kind != CodeKind::kLut || std::equal(f.lut.begin(), f.lut.end(), lut.begin(), lut.end());
}

// The numbers of a grid, row after row, as they are.
std::vector<uint8_t> numbers(const Grid& grid, int64_t n, int64_t columns) {
  const int64_t bytes = columns * tensor::grid_element_bytes(grid.type);
  std::vector<uint8_t> out(static_cast<size_t>(n * bytes));
  for (int64_t row = 0; row < n; ++row) {
    std::memcpy(out.data() + row * bytes,
                grid.values.data() + grid.row_index(row) * tensor::grid_element_bytes(grid.type),
                static_cast<size_t>(bytes));
  }
  return out;
}

std::vector<uint8_t> half_bytes(const std::vector<uint16_t>& in) {
  std::vector<uint8_t> out(in.size() * 2);
  std::memcpy(out.data(), in.data(), out.size());
  return out;
}

const io::GgmlType* type_named(std::string_view name) {
  return io::find_ggml_type(name);
}

// code - zero, if all of it lies in [-half, half).
bool fits(const std::vector<int16_t>& centred, int half) {
  return std::all_of(centred.begin(), centred.end(), [&](int16_t c) { return c >= -half && c < half; });
}

// Minima of Q4_1, when f16 holds every one of them exactly; else empty.
std::vector<uint16_t> exact_minima(const AffineMatrix& m) {
  std::vector<uint16_t> out;
  for (int64_t row = 0; row < m.n; ++row) {
    for (int64_t g = 0; g < m.groups; ++g) {
      const float minimum =
          -(m.scales[static_cast<size_t>(row * m.groups + g)] * static_cast<float>(m.zero_at(row, g)));
      out.push_back(numerics::f32_to_f16(minimum));
      if (numerics::f16_to_f32(out.back()) != minimum) return {};
    }
  }
  return out;
}

Result<GgmlParts> affine_parts(const tensor::QuantizedTensor& weight, const std::string& where, Losses& losses) {
  auto view = affine_view(weight);
  if (!view.ok()) return losses.refuse(where, view.error().found);
  const AffineMatrix m = std::move(view).value();
  const bool whole_row = m.groups == 1;
  if (!m.group_of_k.empty()) return losses.refuse(where, "an order of groups (act-order)");
  if (m.k % 32 != 0 || (!whole_row && m.group % 32 != 0)) {
    return losses.refuse(where, fmt::format("groups of {} over {} columns: blocks have 32", m.group, m.k));
  }
  std::vector<int16_t> centred(m.codes.size());
  for (int64_t row = 0; row < m.n; ++row) {
    for (int64_t i = 0; i < m.k; ++i) {
      const auto at = static_cast<size_t>(row * m.k + i);
      centred[at] = static_cast<int16_t>(m.codes[at] - m.zero_at(row, whole_row ? 0 : i / m.group));
    }
  }
  TARE_ASSIGN(const std::vector<uint16_t> scales, half_scales(m, tensor::DType::kF16, where, losses));
  GgmlParts out{.n = m.n, .k = m.k};
  std::vector<uint16_t> minima;
  int half = 0;
  if (fits(centred, 8)) {
    out.type = type_named("Q4_0");
    half = 8;
  } else if (m.bits <= 4 && !(minima = exact_minima(m)).empty()) {
    out.type = type_named("Q4_1");
  } else if (fits(centred, 16)) {
    out.type = type_named("Q5_0");
    half = 16;
  } else if (fits(centred, 128)) {
    out.type = type_named("Q8_0");
  } else {
    return losses.refuse(where, "codes that are more than 128 from their zero point");
  }
  if (!minima.empty()) {
    out.codes = m.codes;
  } else {
    out.codes.resize(centred.size());
    for (size_t i = 0; i < centred.size(); ++i) out.codes[i] = static_cast<uint8_t>(centred[i] + half);
  }
  const auto spread = [&](const std::vector<uint16_t>& in) {
    std::vector<uint16_t> wide;
    wide.reserve(static_cast<size_t>(m.n * m.k / 32));
    for (int64_t row = 0; row < m.n; ++row) {
      for (int64_t block = 0; block < m.k / 32; ++block) {
        wide.push_back(in[static_cast<size_t>(row * m.groups + (whole_row ? 0 : block * 32 / m.group))]);
      }
    }
    return half_bytes(wide);
  };
  out.a = spread(scales);
  if (!minima.empty()) out.b = spread(minima);
  return out;
}

}  // namespace

Result<GgmlParts> ggml_parts(const tensor::QuantizedTensor& weight, const std::string& where, Losses& losses) {
  const QuantizedFields& f = weight.fields();
  for (const BlockLayout& layout : ggml_layouts()) {
    const io::GgmlType* type = type_named(layout.name);
    if (!find_pack(layout.name) || !type || !is_form(layout, *type, f)) continue;
    GgmlParts out{.type = type, .n = f.n, .k = f.k};
    out.codes.resize(static_cast<size_t>(f.n * f.k));
    for (int64_t row = 0; row < f.n; ++row) {
      for (int64_t i = 0; i < f.k; ++i) {
        out.codes[static_cast<size_t>(row * f.k + i)] = static_cast<uint8_t>(weight.code(row, i));
      }
    }
    const int64_t inner = f.k / layout.inner, blocks = f.k / type->block_size;
    out.a = numbers(*f.a, f.n, inner);
    if (f.b) out.b = numbers(*f.b, f.n, inner);
    if (f.A) out.outer = numbers(*f.A, f.n, blocks);
    if (f.B) out.outer_min = numbers(*f.B, f.n, blocks);
    return out;
  }
  return affine_parts(weight, where, losses);
}

std::vector<uint8_t> pack_ggml(const GgmlParts& parts, const std::vector<int32_t>& row_source) {
  const io::GgmlType& type = *parts.type;
  const BlockLayout& layout = layout_of(type);
  const Pack pack = find_pack(type.name)->pack;
  const int64_t blocks = parts.k / type.block_size;
  const int64_t inner = type.block_size / layout.inner;
  const int64_t a_bytes = inner * tensor::grid_element_bytes(layout.a);
  const int64_t b_bytes = layout.b ? inner * tensor::grid_element_bytes(*layout.b) : 0;
  std::vector<uint8_t> out(static_cast<size_t>(parts.n * blocks * type.block_bytes));
  uint8_t* to = out.data();
  for (int64_t row = 0; row < parts.n; ++row) {
    const int64_t from = row_source.empty() ? row : row_source[static_cast<size_t>(row)];
    for (int64_t i = 0; i < blocks; ++i, to += type.block_bytes) {
      const int64_t block = from * blocks + i;
      pack({.codes = parts.codes.data() + block * type.block_size,
            .a = parts.a.data() + block * a_bytes,
            .b = parts.b.empty() ? nullptr : parts.b.data() + block * b_bytes,
            .outer = parts.outer.empty() ? nullptr : parts.outer.data() + block * 2,
            .outer_min = parts.outer_min.empty() ? nullptr : parts.outer_min.data() + block * 2},
           to);
    }
  }
  return out;
}

}  // namespace tare::checkpoints
