#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_isa.h"

/// Attention of some rows against one kv head, written once over 16 lanes; each instruction set includes it after its
/// lanes.h. For every step of 128 keys:
///
///     stage K    codes of the pages -> f32 [tile of 16 keys][c][16] or integer units [tile][c/4][16 keys][4]
///     scores     rows x keys, one chain over c for each score
///     softmax    running largest m and sum l of each row, weights p = 2^(score - m)
///     stage V    codes -> f32 [key][lanes] or units [key/4][tile of 16 channels][16][4]
///     o          o * 2^(m before - m) + p v, one chain over the keys of the step for each channel
///
/// Every chain is a property of (query, key positions), not of what else is in the task: register tiles only group
/// chains. Keys that a row does not see have p = 0 and leave its state as it was, bit for bit.
///
/// Integer forms: x' = s code + z, so q . x' = s (q . code) + z sum(q), and sum_t p_t x'_t = sum_t (p_t s_t) code_t +
/// sum_t p_t z_t. q and, for each row and step, p_t s_t are rounded to 15 bits relative to their largest; the products
/// are exact in int32.
namespace tare::kernels {
namespace {

constexpr float kNoScore = -3.4e38f;  // below every score, and finite
constexpr float kLog2E = 0x1.715476p+0f;
constexpr int64_t kRowFloats = 32;  // per row: |running sums of p: 16|running sums of p z: 16|

/// Cuts `rows` into nearly equal tiles of at most 6 rows; calls body<R>(row) for each.
template <class Body>
void for_row_tiles(int64_t rows, Body body) {
  const int64_t tiles = (rows + 5) / 6;
  int64_t row = 0;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t next = rows * (i + 1) / tiles;
    switch (next - row) {
      case 1:
        body.template operator()<1>(row);
        break;
      case 2:
        body.template operator()<2>(row);
        break;
      case 3:
        body.template operator()<3>(row);
        break;
      case 4:
        body.template operator()<4>(row);
        break;
      case 5:
        body.template operator()<5>(row);
        break;
      default:
        body.template operator()<6>(row);
        break;
    }
    row = next;
  }
}

/// Tiles [first, last) in groups that R rows leave registers for.
template <int R, int Registers, class Body>
void for_lane_tiles(int64_t first, int64_t last, Body body) {
  constexpr int kMost = Registers / R >= 4 ? 4 : Registers / R >= 2 ? 2 : 1;
  int64_t tile = first;
  for (; tile + kMost <= last; tile += kMost) body.template operator()<kMost>(tile);
  if constexpr (kMost > 2) {
    for (; tile + 2 <= last; tile += 2) body.template operator()<2>(tile);
  }
  if constexpr (kMost > 1) {
    for (; tile < last; ++tile) body.template operator()<1>(tile);
  }
}

/// acc[r][t] = start(r, t); += sum over i of left[r][i] * right[i][t]; done(r, t, acc).
template <int R, int T, class Start, class Done>
void float_product(const float* left, int64_t left_stride, const float* right, int64_t tile_stride, int64_t step_stride,
                   int64_t steps, Start start, Done done) {
  Lanes::F acc[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) acc[r][t] = start(r, t);
  }
  for (int64_t i = 0; i < steps; ++i) {
    Lanes::F b[T];
    for (int t = 0; t < T; ++t) b[t] = Lanes::load(right + i * step_stride + t * tile_stride);
    for (int r = 0; r < R; ++r) {
      const Lanes::F a = Lanes::set1(left[r * left_stride + i]);
      for (int t = 0; t < T; ++t) acc[r][t] = Lanes::fma(a, b[t], acc[r][t]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) done(r, t, acc[r][t]);
  }
}

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

/// Where everything lies in the scratch of one task.
struct Scratch {
  float* left = nullptr;          // [rows][head_dim lanes]: q, or its 15-bit form in the same room
  float* row_factor = nullptr;    // [rows] integer K: scale of q
  float* row_sum = nullptr;       // [rows] integer K: sum of q
  float* alpha = nullptr;         // [rows] 2^(m before - m)
  float* weight_scale = nullptr;  // [rows] integer V
  float* sums = nullptr;          // [rows][kRowFloats]
  float* state = nullptr;         // [rows][state_floats] of the current split
  float* scores = nullptr;        // [rows][kKeyBlock], then p
  std::byte* weights = nullptr;   // [rows][2 * kKeyBlock] integer V: left operand
  std::byte* stage = nullptr;     // K, then V
  float* k_scale = nullptr;       // [kKeyBlock] each
  float* k_zero = nullptr;
  float* v_scale = nullptr;
  float* v_zero = nullptr;
  std::byte* page = nullptr;  // one gathered tile
  int64_t bytes = 0;

  Scratch(std::byte* base, int64_t rows, int64_t head_dim) {
    const int64_t lanes = attend_lanes(head_dim);
    const auto take = [&](int64_t size) {
      std::byte* at = base + bytes;
      bytes += (size + 63) / 64 * 64;
      return at;
    };
    const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(4 * count)); };
    left = floats(rows * lanes);
    row_factor = floats(rows);
    row_sum = floats(rows);
    alpha = floats(rows);
    weight_scale = floats(rows);
    sums = floats(rows * kRowFloats);
    state = floats(rows * state_floats(head_dim));
    scores = floats(rows * kKeyBlock);
    weights = take(rows * 2 * kKeyBlock);
    stage = take(kKeyBlock * lanes * 4);
    k_scale = floats(kKeyBlock);
    k_zero = floats(kKeyBlock);
    v_scale = floats(kKeyBlock);
    v_zero = floats(kKeyBlock);
    page = take(kTile * lanes * 4 + 2 * 2 * kTile + 64);
  }
};

/// One tile of 16 tokens of a side: codes and, where the form has them, scales and zeros.
struct Tile {
  const std::byte* codes = nullptr;
  const std::byte* scale = nullptr;
  const std::byte* zero = nullptr;
};

class Attend {
 public:
  Attend(const AttendTask& task, std::byte* scratch)
      : task_(task), s_(scratch, task.queries * task.group, task.head_dim), rows_(task.queries * task.group) {
    lanes_ = attend_lanes(task.head_dim);
    state_ = state_floats(task.head_dim);
    end_ = task.position + task.queries;
    begin_ = first_visible(0);
    while ((int64_t{1} << block_shift_) < task.block_size) ++block_shift_;
    prepare_queries();
  }

  void splits(int64_t first, int64_t last, float* states) {
    const bool merge = last - first > 1;
    if (merge) {
      for (int64_t r = 0; r < rows_; ++r) empty(states + r * state_);
    }
    for (int64_t split = first; split < last; ++split) {
      float* to = merge ? s_.state : states;
      one_split(split, to);
      if (!merge) continue;
      for (int64_t r = 0; r < rows_; ++r) merge_state(states + r * state_, to + r * state_, lanes_);
    }
  }

  static void empty(float* state, int64_t lanes) {
    for (int64_t i = 0; i < kTile + lanes; i += kTile) Lanes::store(state + i, Lanes::zero());
    state[0] = kNoScore;
  }

  /// into = into (+) from
  static void merge_state(float* into, const float* from, int64_t lanes) {
    const float m = into[0] > from[0] ? into[0] : from[0];
    const Lanes::F a = Lanes::exp2(Lanes::set1(into[0] - m));
    const Lanes::F b = Lanes::exp2(Lanes::set1(from[0] - m));
    Lanes::F head = Lanes::fma(Lanes::load(from), b, Lanes::mul(Lanes::load(into), a));
    Lanes::store(into, head);
    into[0] = m;
    for (int64_t i = kTile; i < kTile + lanes; i += kTile) {
      Lanes::store(into + i, Lanes::fma(Lanes::load(from + i), b, Lanes::mul(Lanes::load(into + i), a)));
    }
  }

 private:
  int64_t first_visible(int64_t query) const {
    return task_.window > 0 ? larger(0, task_.position + query - task_.window + 1) : 0;
  }
  void empty(float* state) const { empty(state, lanes_); }

  void prepare_queries() {
    const Lanes::F factor = Lanes::set1(task_.scale * kLog2E * task_.k.static_scale);
    for (int64_t r = 0; r < rows_; ++r) {
      const float* q = task_.q + r / task_.group * task_.q_stride + r % task_.group * task_.head_dim;
      float* left = s_.left + r * lanes_;
      Lanes::F size = Lanes::zero();
      bool accident = false;
      for (int64_t c = 0; c < lanes_; c += kTile) {
        Lanes::F x;
        if (c + kTile <= task_.head_dim) {
          x = Lanes::load(q + c);
        } else {
          float rest[kTile] = {};
          for (int64_t i = c; i < task_.head_dim; ++i) rest[i - c] = q[i];
          x = Lanes::load(rest);
        }
        x = Lanes::mul(x, factor);
        size = Lanes::max(size, Lanes::abs(x));
        accident |= Lanes::any_not_finite(x);
        Lanes::store(left + c, x);
      }
      if (!integer(task_.k.type)) continue;
      // Largest integer of q such that the sum over channels stays in int32.
      float most = Lanes::kMaxInteger;
      const float fits = static_cast<float>(
          2147483000.0 / (static_cast<double>(task_.k.max_code) * static_cast<double>(task_.k.padded_dim)));
      if (fits < most) most = fits;
      const float amax = Lanes::largest(size);
      const Lanes::F to_integer = Lanes::set1(amax > 0 ? most / amax : 0.0f);
      auto* packed = reinterpret_cast<std::byte*>(left);
      Lanes::I sum = Lanes::int_zero();
      for (int64_t c = 0; c < lanes_; c += kTile) {
        sum = Lanes::pack_left(Lanes::load(left + c), to_integer, packed + 2 * c, sum);
      }
      // An accident in q has no integer form: the scores become NaN instead.
      s_.row_factor[r] = accident ? __builtin_nanf("") : amax / most;
      s_.row_sum[r] = Lanes::int_sum(sum) * s_.row_factor[r];
    }
  }

  Tile tile(const AttendSide& side, bool value_side, int64_t token) {
    if (task_.gather_tile != nullptr) {
      task_.gather_tile(task_.gather_context, value_side, token, end_, s_.page);
      const std::byte* scale = s_.page + side.tile_bytes;
      return {s_.page, scale, scale + 2 * kTile};
    }
    const int64_t slot = token & (task_.block_size - 1);
    const std::byte* page = side.base + task_.blocks[token >> block_shift_] * side.block_bytes;
    return {page + (slot / kTile) * side.tile_bytes, page + side.scale_offset + 2 * slot,
            page + side.zero_offset + 2 * slot};
  }

  void load_scales(const AttendSide& side, const Tile& from, float* scale, float* zero) {
    if (side.has_scale) Lanes::store(scale, Lanes::load_f16(from.scale));
    if (side.has_zero) Lanes::store(zero, Lanes::load_f16(from.zero));
  }

  // --- keys ---

  int64_t k_tile_stride() const {
    return integer(task_.k.type) ? task_.k.padded_dim / 4 * Lanes::kUnitBytes : task_.head_dim * 4 * kTile;
  }

  void stage_k(int64_t start, int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const Tile from = tile(task_.k, false, start + t * kTile);
      std::byte* to = s_.stage + t * k_tile_stride();
      load_scales(task_.k, from, s_.k_scale + t * kTile, s_.k_zero + t * kTile);
      if (task_.k.type == KvType::kInt8) {
        for (int64_t c = 0; c < task_.k.padded_dim / 4; ++c) {
          Lanes::stage_u8(from.codes + 64 * c, to + c * Lanes::kUnitBytes);
        }
      } else if (task_.k.type == KvType::kInt4) {
        for (int64_t c = 0; c < task_.k.padded_dim / 8; ++c) {
          std::byte* unit = to + 2 * c * Lanes::kUnitBytes;
          Lanes::stage_u4(from.codes + 64 * c, unit, unit + Lanes::kUnitBytes);
        }
      } else {
        with_float_type(task_.k.type, [&]<KvType Type>() {
          for (int64_t c = 0; c < task_.head_dim; ++c) {
            Lanes::store(reinterpret_cast<float*>(to) + c * kTile,
                         load_lanes<Type>(from.codes + c * kTile * element_bytes(Type)));
          }
        });
      }
    }
  }

  void scores(int64_t first, int64_t last) {
    const int64_t stride = k_tile_stride();
    if (integer(task_.k.type)) {
      for_row_tiles(rows_, [&]<int R>(int64_t row) {
        for_lane_tiles<R, Lanes::kIntTiles>(first, last, [&]<int T>(int64_t t0) {
          const auto* left = reinterpret_cast<const std::byte*>(s_.left + row * lanes_);
          Lanes::int_product<R, T>(left, 4 * lanes_, s_.stage + t0 * stride, stride, Lanes::kUnitBytes,
                                   task_.k.padded_dim / 4, [&](int r, int t, Lanes::F dot) {
                                     Lanes::store(s_.scores + (row + r) * kKeyBlock + (t0 + t) * kTile, dot);
                                   });
        });
      });
      return;
    }
    for_row_tiles(rows_, [&]<int R>(int64_t row) {
      for_lane_tiles<R, Lanes::kFloatTiles>(first, last, [&]<int T>(int64_t t0) {
        float_product<R, T>(
            s_.left + row * lanes_, lanes_, reinterpret_cast<const float*>(s_.stage + t0 * stride), stride / 4, kTile,
            task_.head_dim, [](int, int) { return Lanes::zero(); },
            [&](int r, int t, Lanes::F dot) {
              Lanes::store(s_.scores + (row + r) * kKeyBlock + (t0 + t) * kTile, dot);
            });
      });
    });
  }

  // --- softmax ---

  Lanes::F finish_score(Lanes::F x, int64_t row, int64_t key) {
    if (integer(task_.k.type)) {
      const Lanes::F product =
          Lanes::mul(Lanes::mul(x, Lanes::set1(s_.row_factor[row])), Lanes::load(s_.k_scale + key));
      x = Lanes::fma(Lanes::load(s_.k_zero + key), Lanes::set1(s_.row_sum[row]), product);
    } else if (task_.k.has_scale) {
      x = Lanes::mul(x, Lanes::load(s_.k_scale + key));
    }
    if (task_.soft_cap > 0) {
      // cap tanh(x / cap), tanh(y) = 1 - 2 / (e^(2y) + 1); x is in units of log2.
      const float cap = task_.soft_cap * kLog2E;
      const Lanes::F limit = Lanes::set1(126.0f);
      const Lanes::F power = Lanes::exp2(Lanes::min(limit, Lanes::mul(x, Lanes::set1(2.0f / task_.soft_cap))));
      const Lanes::F one = Lanes::set1(1.0f);
      const Lanes::F tanh = Lanes::sub(one, Lanes::div(Lanes::set1(2.0f), Lanes::add(power, one)));
      x = Lanes::mul(tanh, Lanes::set1(cap));
    }
    return x;
  }

  /// Scores -> p of one row for the step that begins at `start`, tiles [first, last).
  void softmax(int64_t row, int64_t start, int64_t first, int64_t last, float* state) {
    const int64_t query = row / task_.group;
    float* x = s_.scores + row * kKeyBlock;
    const int64_t lo = first_visible(query) - start;
    const int64_t hi = task_.position + query + 1 - start;
    s_.alpha[row] = 1;
    s_.weight_scale[row] = 0;
    if (hi <= first * kTile || lo >= last * kTile) {
      for (int64_t t = first; t < last; ++t) Lanes::store(x + t * kTile, Lanes::zero());
      if (integer(task_.v.type)) {
        std::byte* to = s_.weights + row * 2 * kKeyBlock + 2 * first * kTile;
        __builtin_memset(to, 0, static_cast<size_t>(2 * (last - first) * kTile));
      }
      return;
    }
    Lanes::F most = Lanes::set1(kNoScore);
    for (int64_t t = first; t < last; ++t) {
      const Lanes::F score =
          Lanes::select(Lanes::range(lo - t * kTile, hi - t * kTile),
                        finish_score(Lanes::load(x + t * kTile), row, t * kTile), Lanes::set1(kNoScore));
      most = Lanes::max(most, score);
      Lanes::store(x + t * kTile, score);
    }
    const float before = state[0];
    const float found = Lanes::largest(most);
    const float m = found > before ? found : before;
    state[0] = m;
    const float alpha = m == before ? 1.0f : first_lane(Lanes::exp2(Lanes::set1(before - m)));
    s_.alpha[row] = alpha;

    float* sums = s_.sums + row * kRowFloats;
    Lanes::F sum = Lanes::mul(Lanes::load(sums), Lanes::set1(alpha));
    Lanes::F zero_sum = Lanes::mul(Lanes::load(sums + kTile), Lanes::set1(alpha));
    Lanes::F weight_most = Lanes::zero();
    const Lanes::F shift = Lanes::set1(m);
    for (int64_t t = first; t < last; ++t) {
      const auto mask = Lanes::range(lo - t * kTile, hi - t * kTile);
      Lanes::F p = Lanes::keep(mask, Lanes::exp2(Lanes::sub(Lanes::load(x + t * kTile), shift)));
      sum = Lanes::add(sum, p);
      if (task_.v.has_zero) {
        zero_sum = Lanes::fma(p, Lanes::keep(mask, Lanes::load(s_.v_zero + t * kTile)), zero_sum);
      }
      if (task_.v.has_scale) p = Lanes::mul(p, Lanes::keep(mask, Lanes::load(s_.v_scale + t * kTile)));
      weight_most = Lanes::max(weight_most, p);
      Lanes::store(x + t * kTile, p);
    }
    Lanes::store(sums, sum);
    Lanes::store(sums + kTile, zero_sum);
    if (integer(task_.v.type)) {
      const float amax = Lanes::largest(weight_most);
      const Lanes::F to_integer = Lanes::set1(amax > 0 ? Lanes::kMaxInteger / amax : 0.0f);
      s_.weight_scale[row] = amax / Lanes::kMaxInteger;
      std::byte* to = s_.weights + row * 2 * kKeyBlock;
      for (int64_t t = first; t < last; ++t) {
        Lanes::pack_left(Lanes::load(x + t * kTile), to_integer, to + 2 * t * kTile, Lanes::int_zero());
      }
    }
  }

  static float first_lane(Lanes::F x) {
    float lanes[kTile];
    Lanes::store(lanes, x);
    return lanes[0];
  }

  // --- values ---

  void stage_v(int64_t start, int64_t first, int64_t last, int64_t keys) {
    const int64_t dp = task_.v.padded_dim;
    const int64_t step = lanes_ / kTile * Lanes::kUnitBytes;  // 4 keys
    bool accident = false;
    for (int64_t t = first; t < last; ++t) {
      const Tile from = tile(task_.v, true, start + t * kTile);
      if (task_.v.type == KvType::kInt8) {
        for (int64_t g = 0; g < 4; ++g) {
          for (int64_t c = 0; c < dp; c += kTile) {
            Lanes::stage_u8(from.codes + 4 * (g * dp + c),
                            s_.stage + (4 * t + g) * step + c / kTile * Lanes::kUnitBytes);
          }
        }
      } else if (task_.v.type == KvType::kInt4) {
        for (int64_t g = 0; g < 2; ++g) {
          for (int64_t c = 0; c < dp; c += kTile) {
            std::byte* low = s_.stage + (4 * t + 2 * g) * step + c / kTile * Lanes::kUnitBytes;
            Lanes::stage_u4(from.codes + 4 * (g * dp + c), low, low + step);
          }
        }
      } else {
        const int64_t count = smaller(kTile, keys - t * kTile);
        float* to = reinterpret_cast<float*>(s_.stage) + t * kTile * lanes_;
        with_float_type(task_.v.type, [&]<KvType Type>() {
          for (int64_t i = 0; i < count; ++i) {
            const std::byte* codes = from.codes + i * task_.head_dim * element_bytes(Type);
            for (int64_t c = 0; c < lanes_; c += kTile) {
              Lanes::F x;
              if (c + kTile <= task_.head_dim) {
                x = load_lanes<Type>(codes + c * element_bytes(Type));
              } else {
                std::byte rest[kTile * 4] = {};
                __builtin_memcpy(rest, codes + c * element_bytes(Type),
                                 static_cast<size_t>((task_.head_dim - c) * element_bytes(Type)));
                x = load_lanes<Type>(rest);
              }
              accident |= Lanes::any_not_finite(x);
              Lanes::store(to + i * lanes_ + c, x);
            }
          }
        });
      }
    }
    if (accident) contain_accident(start, first * kTile, keys);
  }

  /// A value that is NaN or inf would reach rows that do not see it, as 0 * inf. It is taken out, and rows that see it
  /// become NaN.
  void contain_accident(int64_t start, int64_t first, int64_t keys) {
    for (int64_t key = first; key < keys; ++key) {
      float* v = reinterpret_cast<float*>(s_.stage) + key * lanes_;
      bool bad = false;
      for (int64_t c = 0; c < lanes_; ++c) {
        if (v[c] - v[c] == 0) continue;
        bad = true;
        v[c] = 0;
      }
      if (!bad) continue;
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t query = r / task_.group;
        if (start + key >= first_visible(query) && start + key <= task_.position + query) {
          s_.sums[r * kRowFloats] = __builtin_nanf("");
        }
      }
    }
  }

  void values(int64_t first, int64_t keys, float* states) {
    const int64_t tiles = lanes_ / kTile;
    if (integer(task_.v.type)) {
      const int64_t step = tiles * Lanes::kUnitBytes;
      const std::byte* right = s_.stage + first / 4 * step;
      for_row_tiles(rows_, [&]<int R>(int64_t row) {
        for_lane_tiles<R, Lanes::kIntTiles>(0, tiles, [&]<int T>(int64_t t0) {
          Lanes::int_product<R, T>(s_.weights + row * 2 * kKeyBlock + 2 * first, 2 * kKeyBlock,
                                   right + t0 * Lanes::kUnitBytes, Lanes::kUnitBytes, step, (keys - first + 3) / 4,
                                   [&](int r, int t, Lanes::F sum) {
                                     float* o = states + (row + r) * state_ + kTile + (t0 + t) * kTile;
                                     const Lanes::F old = Lanes::mul(Lanes::load(o), Lanes::set1(s_.alpha[row + r]));
                                     Lanes::store(o, Lanes::fma(sum, Lanes::set1(s_.weight_scale[row + r]), old));
                                   });
        });
      });
      return;
    }
    const float* right = reinterpret_cast<const float*>(s_.stage) + first * lanes_;
    for_row_tiles(rows_, [&]<int R>(int64_t row) {
      for_lane_tiles<R, Lanes::kFloatTiles>(0, tiles, [&]<int T>(int64_t t0) {
        float* o = states + row * state_ + kTile + t0 * kTile;
        float_product<R, T>(
            s_.scores + row * kKeyBlock + first, kKeyBlock, right + t0 * kTile, kTile, lanes_, keys - first,
            [&](int r, int t) {
              return Lanes::mul(Lanes::load(o + r * state_ + t * kTile), Lanes::set1(s_.alpha[row + r]));
            },
            [&](int r, int t, Lanes::F x) { Lanes::store(o + r * state_ + t * kTile, x); });
      });
    });
  }

  // --- steps ---

  void prefetch(int64_t start, int64_t end) {
    if (task_.gather_tile != nullptr) return;
    for (int64_t token = start; token < end; token += kTile) {
      for (const AttendSide* side : {&task_.k, &task_.v}) {
        const int64_t slot = token & (task_.block_size - 1);
        const std::byte* page = side->base + task_.blocks[token >> block_shift_] * side->block_bytes;
        const std::byte* codes = page + slot / kTile * side->tile_bytes;
        for (int64_t i = 0; i < side->tile_bytes; i += 64) Lanes::prefetch(codes + i);
        if (side->has_scale) Lanes::prefetch(page + side->scale_offset + 2 * slot);
      }
    }
  }

  void one_split(int64_t split, float* states) {
    for (int64_t r = 0; r < rows_; ++r) {
      empty(states + r * state_);
      Lanes::store(s_.sums + r * kRowFloats, Lanes::zero());
      Lanes::store(s_.sums + r * kRowFloats + kTile, Lanes::zero());
    }
    const int64_t from = larger(split * kSplitTokens, begin_ / kKeyBlock * kKeyBlock);
    const int64_t to = smaller((split + 1) * kSplitTokens, end_);
    for (int64_t start = from; start < to; start += kKeyBlock) {
      const int64_t keys = smaller(kKeyBlock, to - start);
      const int64_t first = larger(0, begin_ - start) / kTile;
      const int64_t last = (keys + kTile - 1) / kTile;
      prefetch(start + kKeyBlock, smaller(start + 2 * kKeyBlock, to));
      stage_k(start, first, last);
      scores(first, last);
      if (task_.v.has_scale) {
        for (int64_t t = first; t < last; ++t) {
          load_scales(task_.v, tile(task_.v, true, start + t * kTile), s_.v_scale + t * kTile, s_.v_zero + t * kTile);
        }
      }
      for (int64_t r = 0; r < rows_; ++r) softmax(r, start, first, last, states + r * state_);
      stage_v(start, first, last, keys);
      values(first * kTile, keys, states);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      float* state = states + r * state_;
      state[1] = Lanes::sum(Lanes::load(s_.sums + r * kRowFloats));
      if (!task_.v.has_zero) continue;
      const Lanes::F zero = Lanes::set1(Lanes::sum(Lanes::load(s_.sums + r * kRowFloats + kTile)));
      for (int64_t i = kTile; i < state_; i += kTile) Lanes::store(state + i, Lanes::add(Lanes::load(state + i), zero));
    }
  }

  const AttendTask& task_;
  Scratch s_;
  int64_t rows_;
  int64_t lanes_ = 0;
  int64_t state_ = 0;
  int64_t begin_ = 0;  // first key that some row sees
  int64_t end_ = 0;    // one past the last
  int block_shift_ = 0;
};

int64_t scratch_bytes(int64_t rows, int64_t head_dim) {
  return Scratch(nullptr, rows, head_dim).bytes;
}

void attend(const AttendTask& task, int64_t first_split, int64_t last_split, float* states, std::byte* scratch) {
  Attend(task, scratch).splits(first_split, last_split, states);
}

void finish(const float* states, int64_t count, int64_t stride, int64_t head_dim, float static_scale, float* out) {
  const int64_t lanes = attend_lanes(head_dim);
  float state[kTile + 1024];
  // Heads wider than the buffer are refused by can_implement.
  Attend::empty(state, lanes);
  for (int64_t i = 0; i < count; ++i) Attend::merge_state(state, states + i * stride, lanes);
  const Lanes::F factor = Lanes::set1(static_scale / state[1]);
  for (int64_t c = 0; c < lanes; c += kTile) {
    const Lanes::F x = Lanes::mul(Lanes::load(state + kTile + c), factor);
    if (c + kTile <= head_dim) {
      Lanes::store(out + c, x);
    } else {
      float rest[kTile];
      Lanes::store(rest, x);
      for (int64_t i = c; i < head_dim; ++i) out[i] = rest[i - c];
    }
  }
}

}  // namespace
}  // namespace tare::kernels
