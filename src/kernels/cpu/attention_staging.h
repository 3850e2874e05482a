#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_isa.h"
#include "kernels/cpu/attention_products.h"

/// From the codes of pages to operands, and the scratch that holds them, for attention_body.h.
namespace tare::kernels {
namespace {

constexpr bool integer(KvType type) {
  return type == KvType::kInt8 || type == KvType::kInt4;
}
constexpr int64_t element_bytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kF16 || type == KvType::kBF16 ? 2 : 1;
}

template <KvType Type>
Lanes::F load_lanes(const std::byte* p) {
  if constexpr (Type == KvType::kF32) {
    return Lanes::load(reinterpret_cast<const float*>(p));
  } else if constexpr (Type == KvType::kF16) {
    return Lanes::load_f16(p);
  } else if constexpr (Type == KvType::kBF16) {
    return Lanes::load_bf16(p);
  } else if constexpr (Type == KvType::kE4M3) {
    return Lanes::load_e4m3(p);
  } else {
    return Lanes::load_e5m2(p);
  }
}

/// Calls body<Type>() for a float form.
template <class Body>
void with_float_type(KvType type, Body body) {
  switch (type) {
    case KvType::kF32:
      return body.template operator()<KvType::kF32>();
    case KvType::kF16:
      return body.template operator()<KvType::kF16>();
    case KvType::kBF16:
      return body.template operator()<KvType::kBF16>();
    case KvType::kE4M3:
      return body.template operator()<KvType::kE4M3>();
    default:
      return body.template operator()<KvType::kE5M2>();
  }
}

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/// `count` groups of 16 codes -> f32.
template <KvType Type>
void stage_floats(const std::byte* codes, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    Lanes::store(to + i * kTile, load_lanes<Type>(codes + i * kTile * element_bytes(Type)));
  }
}

/// Rows of `dim` codes -> f32 rows of `lanes`, zeros at the end. True if a value is NaN or inf.
template <KvType Type>
bool stage_rows(const std::byte* codes, int64_t rows, int64_t dim, int64_t lanes, float* to) {
  const Lanes::F zero = Lanes::zero();
  Lanes::F accident = zero;  // 0 * x: stays 0 for finite x
  const int64_t whole = dim / kTile * kTile;
  for (int64_t r = 0; r < rows; ++r, codes += dim * element_bytes(Type), to += lanes) {
    for (int64_t c = 0; c < whole; c += kTile) {
      const Lanes::F x = load_lanes<Type>(codes + c * element_bytes(Type));
      accident = Lanes::fma(x, zero, accident);
      Lanes::store(to + c, x);
    }
    if (whole == lanes) continue;
    std::byte rest[kTile * 4] = {};
    __builtin_memcpy(rest, codes + whole * element_bytes(Type),
                     static_cast<size_t>((dim - whole) * element_bytes(Type)));
    const Lanes::F x = load_lanes<Type>(rest);
    accident = Lanes::fma(x, zero, accident);
    Lanes::store(to + whole, x);
  }
  return Lanes::any_not_finite(accident);
}

/// `count` groups of 64 bytes of codes -> integer units.
void stage_wide_units(const std::byte* codes, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) Lanes::stage_wide(codes + 64 * i, to + i * Lanes::kWideUnitBytes);
}
/// The same for nibbles: low ones go to units at `to`, high ones `high` bytes further; `step` from one pair to the
/// next.
void stage_narrow_units(const std::byte* codes, int64_t count, std::byte* to, int64_t step, int64_t high) {
  for (int64_t i = 0; i < count; ++i) Lanes::stage_narrow(codes + 64 * i, to + i * step, to + i * step + high);
}

/// (bits of t in reverse order + 1/2) / 128 for t in 0..127: any run of neighbours is spread over 0..1.
struct Offsets {
  float value[kKeyBlock];
};
constexpr Offsets spread_offsets() {
  Offsets out{};
  for (int t = 0; t < kKeyBlock; ++t) {
    int reversed = 0;
    for (int bit = 0; bit < 7; ++bit) reversed |= ((t >> bit) & 1) << (6 - bit);
    out.value[t] = (static_cast<float>(reversed) + 0.5f) / 128;
  }
  return out;
}
constexpr Offsets kOffsets = spread_offsets();

/// Where everything lies in the scratch of one task. Arrays over rows have room for a multiple of 16.
struct Scratch {
  float* left = nullptr;         // [rows][lanes]: q, or its integer form in the same room
  float* row_factor = nullptr;   // [rows] integer K: scale of q
  float* row_sum = nullptr;      // [rows] integer K: sum of q
  int64_t* row_first = nullptr;  // [rows] first key that the row sees, and one past its last
  int64_t* row_end = nullptr;
  float* most = nullptr;          // [rows] m
  float* found = nullptr;         // [rows] largest score of the step
  float* alpha = nullptr;         // [rows] 2^(m before - m)
  float* weight_most = nullptr;   // [rows] largest p s of the step
  float* weight_scale = nullptr;  // [rows] integer V: scale of p s
  float* sums = nullptr;          // [rows][16] sums of p, lane by lane
  float* zero_sums = nullptr;     // [rows][16] sums of p z
  float* state = nullptr;         // [rows][state_floats] of the current split
  float* scores = nullptr;        // [rows][kKeyBlock], then p s
  std::byte* weights = nullptr;   // [rows][2 * kKeyBlock] integer V: left operand
  std::byte* stage = nullptr;     // K, then V
  float* k_scale = nullptr;       // [kKeyBlock] each
  float* k_zero = nullptr;
  float* v_scale = nullptr;
  float* v_zero = nullptr;
  std::byte* page = nullptr;  // one gathered tile
  Ahead* ahead = nullptr;
  int64_t bytes = 0;

  Scratch(std::byte* base, int64_t rows, int64_t head_dim) {
    const int64_t lanes = attend_lanes(head_dim);
    const int64_t padded = (rows + 15) / 16 * 16;
    const auto take = [&](int64_t size) {
      std::byte* at = base + bytes;
      bytes += (size + 63) / 64 * 64;
      return at;
    };
    const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(4 * count)); };
    left = floats(rows * lanes);
    for (float** array : {&row_factor, &row_sum, &most, &found, &alpha, &weight_most, &weight_scale}) {
      *array = floats(padded);
    }
    row_first = reinterpret_cast<int64_t*>(take(8 * rows));
    row_end = reinterpret_cast<int64_t*>(take(8 * rows));
    sums = floats(rows * kTile);
    zero_sums = floats(rows * kTile);
    state = floats(rows * state_floats(head_dim));
    scores = floats(rows * kKeyBlock);
    weights = take(rows * 2 * kKeyBlock);
    stage = take(kKeyBlock * lanes * 4);
    for (float** array : {&k_scale, &k_zero, &v_scale, &v_zero}) *array = floats(kKeyBlock);
    page = take(kTile * lanes * 4 + 2 * 2 * kTile + 64);
    ahead = reinterpret_cast<Ahead*>(take(sizeof(Ahead)));
  }
};

}  // namespace
}  // namespace tare::kernels
