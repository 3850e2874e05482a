#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_isa.h"
#include "kernels/cpu/attention_products.h"
#include "kernels/cpu/attention_staging.h"

/// Attention of some rows against one kv head, written once over 16 lanes; each instruction set includes it after its
/// lanes.h. For every step of 128 keys:
///
///     stage K    codes of the pages -> f32 [tile of 16 keys][c][16] or integer units [tile][c/4][16 keys][4]
///     scores     rows x keys, one chain over c for each score
///     softmax    running largest m and sum l of each row, weights p = 2^(score - m)
///     stage V    codes -> f32 [key][lanes] or units [key/4][tile of 16 channels][16][4]
///     values     o = o * 2^(m before - m) + p v, one chain over the keys of the step for each channel
///
/// Every chain is a property of (query, key positions), not of what else is in the task. Keys that a row does not see
/// have p = 0 and leave its state as it was, bit for bit.
///
/// Integer forms: x' = s code + z, so q . x' = s (q . code) + z sum(q), and sum_t p_t x'_t = sum_t (p_t s_t) code_t +
/// sum_t p_t z_t. The left operands become integers relative to their largest, q for each row and p_t s_t for each row
/// and step; the products are exact in int32. With 8-bit codes they have 15 bits. With 4-bit codes, whose own error is
/// 16 times larger, they have 8 bits: q rounded to nearest, p_t s_t rounded down after adding an offset in 0..1 that
/// depends on the key's position alone and is spread evenly, so that many small weights keep their sum.
/// docs/decisions/attention.md has what that costs.
namespace tare::kernels {
namespace {

constexpr float kNoScore = -3.4e38f;       // below every score, and finite
constexpr int64_t kStageBytes = 16 << 10;  // half of a small first-level cache
constexpr int64_t kManyRows = 24;  // from here on the passes over rows are enough to spread what is fetched ahead
constexpr float kLog2E = 0x1.715476p+0f;

/// One tile of 16 tokens of a side: codes and, where the form has them, scales and zeros.
struct Tile {
  const std::byte* codes = nullptr;
  const std::byte* scale = nullptr;
  const std::byte* zero = nullptr;
};

enum class KeyKind { kPlain, kScale, kInteger };
enum class ValueKind { kPlain, kScale, kScaleAndZero };

class Attend {
 public:
  Attend(const AttendTask& task, std::byte* scratch)
      : task_(task), s_(scratch, task.queries * task.group, task.head_dim), rows_(task.queries * task.group) {
    lanes_ = attend_lanes(task.head_dim);
    state_ = state_floats(task.head_dim);
    while ((int64_t{1} << block_shift_) < task.block_size) ++block_shift_;
    prepare_rows();
    begin_ = s_.row_first[0];
    end_ = s_.row_end[rows_ - 1];
    choose_passes();
  }

  void splits(int64_t first, int64_t last, float* states) {
    const bool merge = last - first > 1;
    if (merge) {
      for (int64_t r = 0; r < rows_; ++r) empty(states + r * state_, lanes_);
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
    for (int64_t i = 0; i < kTile + lanes; i += kTile) {
      Lanes::store(into + i, Lanes::fma(Lanes::load(from + i), b, Lanes::mul(Lanes::load(into + i), a)));
    }
    into[0] = m;
  }

 private:
  // --- rows ---

  void prepare_rows() {
    const Lanes::F factor = Lanes::set1(task_.scale * kLog2E * task_.k.static_scale);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t position = task_.position + r / task_.group;
      s_.row_first[r] = task_.window > 0 ? larger(0, position - task_.window + 1) : 0;
      s_.row_end[r] = position + 1;
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
      const float amax = Lanes::largest(size);
      const float most = left_most();
      const Lanes::F to_integer = Lanes::set1(amax > 0 ? most / amax : 0.0f);
      auto* packed = reinterpret_cast<std::byte*>(left);
      Lanes::I sum = Lanes::int_zero();
      for (int64_t c = 0; c < lanes_; c += kTile) {
        const Lanes::F x = Lanes::load(left + c);
        sum = task_.k.type == KvType::kInt8 ? Lanes::pack_wide(x, to_integer, packed + 2 * c, sum)
                                            : Lanes::pack_signed(x, to_integer, packed + c, sum);
      }
      // An accident in q has no integer form: the scores become NaN instead.
      s_.row_factor[r] = accident ? __builtin_nanf("") : amax / most;
      s_.row_sum[r] = Lanes::int_sum(sum) * s_.row_factor[r];
    }
  }

  /// Largest integer of q such that the sum over channels stays in int32.
  float left_most() const {
    if (task_.k.type == KvType::kInt4) return kSignedMost;
    const double fits = 2147483000.0 / (255.0 * static_cast<double>(task_.k.padded_dim));
    return fits < static_cast<double>(kWideMost) ? static_cast<float>(fits) : kWideMost;
  }

  // --- pages ---

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

  static void load_scales(const AttendSide& side, const Tile& from, float* scale, float* zero) {
    if (side.has_scale) Lanes::store(scale, Lanes::load_f16(from.scale));
    if (side.has_zero) Lanes::store(zero, Lanes::load_f16(from.zero));
  }

  void look_ahead(int64_t start, int64_t last) {
    Ahead& ahead = *s_.ahead;
    ahead.count = ahead.next = 0;
    if (task_.gather_tile != nullptr) return;
    int64_t lines = 0;
    for (int64_t token = start; token < last; token += kTile) {
      for (const AttendSide* side : {&task_.k, &task_.v}) {
        // Scales and zeros of 16 tokens are 64 bytes; in a block of 16 tokens they follow the codes.
        const Tile t = tile(*side, false, token);
        const bool together = task_.block_size == kTile;
        lines += ahead.add(t.codes, side->tile_bytes + (together && side->has_scale ? 4 * kTile : 0));
        if (!together && side->has_scale) lines += ahead.add(t.scale, 2 * kTile);
        if (!together && side->has_zero) lines += ahead.add(t.zero, 2 * kTile);
      }
    }
    // The fetches are spread over the work of this step: over chunks of 8 steps of its products, over the softmax
    // passes of each row, and over the staging of float tiles.
    const int64_t row_tiles = (rows_ + 5) / 6;
    const auto chunks = [&](KvType type, int64_t tiles, int64_t steps) {
      const int registers = type == KvType::kInt8   ? Lanes::kWideTiles
                            : type == KvType::kInt4 ? Lanes::kNarrowTiles
                                                    : Lanes::kFloatTiles;
      const int64_t wide = registers / ((rows_ + row_tiles - 1) / row_tiles);
      const int64_t tiles_at_once = wide >= 4 ? 4 : wide >= 2 ? 2 : 1;
      return row_tiles * (tiles / tiles_at_once) * (steps / (integer(type) ? 4 : 1) / kChunk);
    };
    const int64_t staged =
        (integer(task_.k.type) ? 0 : kKeyBlock / kTile) + (integer(task_.v.type) ? 0 : kKeyBlock / kTile);
    const int64_t passes = staged + rows_ * (integer(task_.v.type) ? 3 : 2);
    if (rows_ >= kManyRows) {
      ahead.per_chunk = 0;
      ahead.per_pass = (lines + passes - 1) / passes;
      return;
    }
    const int64_t total = chunks(task_.k.type, kKeyBlock / kTile, task_.head_dim) +
                          chunks(task_.v.type, lanes_ / kTile, kKeyBlock) + passes;
    ahead.per_chunk = ahead.per_pass = (lines + total - 1) / total;
  }

  /// Tiles that are staged at a time: as many as stay in the first-level cache until all rows have used them.
  int64_t stage_tiles(KvType type) const {
    const int64_t element = integer(type) ? 2 : 4;
    return larger(1, kStageBytes / (kTile * lanes_ * element));
  }

  // --- keys ---

  int64_t k_step() const {
    return task_.k.type == KvType::kInt8   ? Lanes::kWideUnitBytes
           : task_.k.type == KvType::kInt4 ? Lanes::kNarrowUnitBytes
                                           : 4 * kTile;
  }
  int64_t k_steps() const { return integer(task_.k.type) ? task_.k.padded_dim / 4 : task_.head_dim; }

  void stage_k(int64_t start, int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const Tile from = tile(task_.k, false, start + t * kTile);
      std::byte* to = s_.stage + (t - first) * k_steps() * k_step();
      load_scales(task_.k, from, s_.k_scale + t * kTile, s_.k_zero + t * kTile);
      if (task_.k.type == KvType::kInt8) {
        stage_wide_units(from.codes, k_steps(), to);
      } else if (task_.k.type == KvType::kInt4) {
        stage_narrow_units(from.codes, k_steps() / 2, to, 2 * k_step(), k_step());
      } else {
        s_.ahead->fetch(s_.ahead->per_pass);
        with_float_type(task_.k.type, [&]<KvType Type>() {
          stage_floats<Type>(from.codes, k_steps(), reinterpret_cast<float*>(to));
        });
      }
    }
  }

  void scores(int64_t first, int64_t last) {
    const int64_t stride = k_steps() * k_step();
    const auto store_score = [&](int64_t row, int64_t t0) {
      return [=, this](int r, int t, Lanes::F dot) {
        Lanes::store(s_.scores + (row + r) * kKeyBlock + (t0 + t) * kTile, dot);
      };
    };
    const auto codes = [&](int64_t t0) {
      return Operand<std::byte>{s_.stage + (t0 - first) * stride, stride, k_step()};
    };
    const auto packed = [&](int64_t row) {
      return Operand<std::byte>{reinterpret_cast<const std::byte*>(s_.left + row * lanes_), 4 * lanes_, 0};
    };
    for_row_tiles(rows_, [&]<int R>(int64_t row) {
      if (task_.k.type == KvType::kInt8) {
        for_lane_tiles<R, Lanes::kWideTiles>(first, last, [&]<int T>(int64_t t0) {
          wide_product<R, T>(packed(row), codes(t0), k_steps(), *s_.ahead, store_score(row, t0));
        });
      } else if (task_.k.type == KvType::kInt4) {
        for_lane_tiles<R, Lanes::kNarrowTiles>(first, last, [&]<int T>(int64_t t0) {
          narrow_product<R, T, true>(packed(row), codes(t0), k_steps(), *s_.ahead, store_score(row, t0));
        });
      } else {
        for_lane_tiles<R, Lanes::kFloatTiles>(first, last, [&]<int T>(int64_t t0) {
          const Operand<float> q{s_.left + row * lanes_, lanes_, 1};
          const Operand<float> k{reinterpret_cast<const float*>(s_.stage + (t0 - first) * stride), stride / 4, kTile};
          float_product<R, T>(
              q, k, k_steps(), *s_.ahead, [](int, int) { return Lanes::zero(); }, store_score(row, t0));
        });
      }
    });
  }

  // --- softmax ---

  /// Finishes the scores of a row in place; returns their largest.
  template <KeyKind Kind, bool Cap, bool Full>
  float score_pass(int64_t row, int64_t start, int64_t first, int64_t last) {
    float* x = s_.scores + row * kKeyBlock;
    const Lanes::F factor = Lanes::set1(s_.row_factor[row]);
    const Lanes::F sum = Lanes::set1(s_.row_sum[row]);
    const float* k_scale = s_.k_scale;
    const float* k_zero = s_.k_zero;
    const int64_t from = s_.row_first[row] - start;
    const int64_t to = s_.row_end[row] - start;
    const Lanes::F cap = Lanes::set1(task_.soft_cap * kLog2E);
    const Lanes::F per_cap = Lanes::set1(2.0f / task_.soft_cap);
    Lanes::F most = Lanes::set1(kNoScore);
    for (int64_t t = first; t < last; ++t) {
      Lanes::F score = Lanes::load(x + t * kTile);
      if constexpr (Kind == KeyKind::kInteger) {
        const Lanes::F product = Lanes::mul(Lanes::mul(score, factor), Lanes::load(k_scale + t * kTile));
        score = Lanes::fma(Lanes::load(k_zero + t * kTile), sum, product);
      } else if constexpr (Kind == KeyKind::kScale) {
        score = Lanes::mul(score, Lanes::load(k_scale + t * kTile));
      }
      if constexpr (Cap) {
        // cap tanh(x / cap), tanh(y) = 1 - 2 / (e^(2y) + 1); x is in units of log2.
        const Lanes::F one = Lanes::set1(1.0f);
        const Lanes::F power = Lanes::exp2(Lanes::min(Lanes::set1(126.0f), Lanes::mul(score, per_cap)));
        const Lanes::F tanh = Lanes::sub(one, Lanes::div(Lanes::set1(2.0f), Lanes::add(power, one)));
        score = Lanes::mul(tanh, cap);
      }
      if constexpr (!Full)
        score = Lanes::select(Lanes::range(from - t * kTile, to - t * kTile), score, Lanes::set1(kNoScore));
      most = Lanes::max(most, score);
      Lanes::store(x + t * kTile, score);
    }
    return Lanes::largest(most);
  }

  /// Scores of a row -> p s in place; adds to the row's sums.
  template <ValueKind Kind, bool Full>
  void weight_pass(int64_t row, int64_t start, int64_t first, int64_t last) {
    float* x = s_.scores + row * kKeyBlock;
    const Lanes::F alpha = Lanes::set1(s_.alpha[row]);
    const Lanes::F shift = Lanes::set1(s_.most[row]);
    Lanes::F sum = Lanes::mul(Lanes::load(s_.sums + row * kTile), alpha);
    Lanes::F zero_sum = Lanes::mul(Lanes::load(s_.zero_sums + row * kTile), alpha);
    const float* v_scale = s_.v_scale;
    const float* v_zero = s_.v_zero;
    const int64_t from = s_.row_first[row] - start;
    const int64_t to = s_.row_end[row] - start;
    Lanes::F most = Lanes::zero();
    for (int64_t t = first; t < last; ++t) {
      Lanes::F p = Lanes::exp2(Lanes::sub(Lanes::load(x + t * kTile), shift));
      // What a row does not see must not reach it even as 0 * NaN: old pages may hold anything.
      const auto seen = [&](Lanes::F value) {
        if constexpr (Full) {
          return value;
        } else {
          return Lanes::keep(Lanes::range(from - t * kTile, to - t * kTile), value);
        }
      };
      p = seen(p);
      sum = Lanes::add(sum, p);
      if constexpr (Kind == ValueKind::kScaleAndZero) {
        zero_sum = Lanes::fma(p, seen(Lanes::load(v_zero + t * kTile)), zero_sum);
      }
      if constexpr (Kind != ValueKind::kPlain) p = Lanes::mul(p, seen(Lanes::load(v_scale + t * kTile)));
      most = Lanes::max(most, p);
      Lanes::store(x + t * kTile, p);
    }
    Lanes::store(s_.sums + row * kTile, sum);
    if constexpr (Kind != ValueKind::kScaleAndZero) return;
    Lanes::store(s_.zero_sums + row * kTile, zero_sum);
    s_.weight_most[row] = Lanes::largest(most);
  }

  /// p s of a row -> left operand.
  void pack_pass(int64_t row, int64_t first, int64_t last) {
    const float most = task_.v.type == KvType::kInt8 ? kWideMost : kUnsignedMost;
    const float amax = s_.weight_most[row];
    const float* x = s_.scores + row * kKeyBlock;
    std::byte* to = s_.weights + row * 2 * kKeyBlock;
    const Lanes::F to_integer = Lanes::set1(amax > 0 ? most / amax : 0.0f);
    s_.weight_scale[row] = amax / most;
    if (task_.v.type == KvType::kInt8) {
      for (int64_t i = first * kTile; i < last * kTile; i += kTile) {
        Lanes::pack_wide(Lanes::load(x + i), to_integer, to + 2 * i, Lanes::int_zero());
      }
      return;
    }
    for (int64_t i = first * kTile; i < last * kTile; i += kTile) {
      Lanes::pack_unsigned(Lanes::load(x + i), to_integer, Lanes::load(kOffsets.value + i), to + i);
    }
  }

  using ScorePass = float (Attend::*)(int64_t, int64_t, int64_t, int64_t);
  using WeightPass = void (Attend::*)(int64_t, int64_t, int64_t, int64_t);

  template <KeyKind Kind>
  void choose_score_pass() {
    const bool cap = task_.soft_cap > 0;
    score_pass_[0] = cap ? &Attend::score_pass<Kind, true, false> : &Attend::score_pass<Kind, false, false>;
    score_pass_[1] = cap ? &Attend::score_pass<Kind, true, true> : &Attend::score_pass<Kind, false, true>;
  }
  template <ValueKind Kind>
  void choose_weight_pass() {
    weight_pass_[0] = &Attend::weight_pass<Kind, false>;
    weight_pass_[1] = &Attend::weight_pass<Kind, true>;
  }
  void choose_passes() {
    if (integer(task_.k.type)) {
      choose_score_pass<KeyKind::kInteger>();
    } else if (task_.k.has_scale) {
      choose_score_pass<KeyKind::kScale>();
    } else {
      choose_score_pass<KeyKind::kPlain>();
    }
    if (integer(task_.v.type)) {
      choose_weight_pass<ValueKind::kScaleAndZero>();
    } else if (task_.v.has_scale) {
      choose_weight_pass<ValueKind::kScale>();
    } else {
      choose_weight_pass<ValueKind::kPlain>();
    }
  }

  /// Pass by pass over all rows: the long chains of one row (largest, 2^x) hide behind those of the others.
  void softmax(int64_t start, int64_t first, int64_t last) {
    const auto full = [&](int64_t r) {
      return s_.row_first[r] <= start + first * kTile && s_.row_end[r] >= start + last * kTile ? 1 : 0;
    };
    Ahead& ahead = *s_.ahead;
    for (int64_t r = 0; r < rows_; ++r) {
      ahead.fetch(ahead.per_pass);
      s_.found[r] = (this->*score_pass_[full(r)])(r, start, first, last);
    }
    for (int64_t r = 0; r < rows_; r += kTile) {
      const Lanes::F before = Lanes::load(s_.most + r);
      const Lanes::F m = Lanes::max(Lanes::load(s_.found + r), before);
      Lanes::store(s_.most + r, m);
      Lanes::store(s_.alpha + r, Lanes::exp2(Lanes::sub(before, m)));
    }
    for (int64_t r = 0; r < rows_; ++r) {
      ahead.fetch(ahead.per_pass);
      (this->*weight_pass_[full(r)])(r, start, first, last);
    }
    if (!integer(task_.v.type)) return;
    for (int64_t r = 0; r < rows_; ++r) {
      ahead.fetch(ahead.per_pass);
      pack_pass(r, first, last);
    }
  }

  // --- values ---

  int64_t v_unit() const { return task_.v.type == KvType::kInt8 ? Lanes::kWideUnitBytes : Lanes::kNarrowUnitBytes; }

  void stage_v(int64_t start, int64_t first, int64_t last, int64_t keys) {
    const int64_t dp = task_.v.padded_dim;
    const int64_t tiles = lanes_ / kTile;
    const int64_t step = tiles * v_unit();  // 4 keys
    bool accident = false;
    for (int64_t t = first; t < last; ++t) {
      const Tile from = tile(task_.v, true, start + t * kTile);
      if (task_.v.type == KvType::kInt8) {
        for (int64_t g = 0; g < 4; ++g)
          stage_wide_units(from.codes + 4 * g * dp, tiles, s_.stage + (4 * (t - first) + g) * step);
      } else if (task_.v.type == KvType::kInt4) {
        for (int64_t g = 0; g < 2; ++g) {
          stage_narrow_units(from.codes + 4 * g * dp, tiles, s_.stage + (4 * (t - first) + 2 * g) * step, v_unit(),
                             step);
        }
      } else {
        s_.ahead->fetch(s_.ahead->per_pass);
        with_float_type(task_.v.type, [&]<KvType Type>() {
          accident |= stage_rows<Type>(from.codes, smaller(kTile, keys - t * kTile), task_.head_dim, lanes_,
                                       reinterpret_cast<float*>(s_.stage) + (t - first) * kTile * lanes_);
        });
      }
    }
    if (accident) contain_accident(start, first * kTile, keys);
  }

  /// A value that is NaN or inf would reach rows that do not see it, as 0 * inf. It is taken out, and rows that see it
  /// become NaN.
  void contain_accident(int64_t start, int64_t first, int64_t keys) {
    for (int64_t key = first; key < keys; ++key) {
      float* v = reinterpret_cast<float*>(s_.stage) + (key - first) * lanes_;
      bool bad = false;
      for (int64_t c = 0; c < lanes_; ++c) {
        if (v[c] - v[c] == 0) continue;
        bad = true;
        v[c] = 0;
      }
      if (!bad) continue;
      for (int64_t r = 0; r < rows_; ++r) {
        if (start + key >= s_.row_first[r] && start + key < s_.row_end[r]) s_.sums[r * kTile] = __builtin_nanf("");
      }
    }
  }

  /// Keys [first, keys) of the step; `again`: o has been scaled by alpha before.
  void values(int64_t first, int64_t keys, bool again, float* states) {
    const int64_t tiles = lanes_ / kTile;
    const int64_t unit = v_unit();
    const auto scaled = [=, this](const float* o, int64_t row) {
      const Lanes::F old = Lanes::load(o);
      return again ? old : Lanes::mul(old, Lanes::set1(s_.alpha[row]));
    };
    const auto add_to_state = [&](int64_t row, int64_t t0) {
      return [=, this](int r, int t, Lanes::F sum) {
        float* o = states + (row + r) * state_ + kTile + (t0 + t) * kTile;
        const Lanes::F old = scaled(o, row + r);
        Lanes::store(o, Lanes::fma(sum, Lanes::set1(s_.weight_scale[row + r]), old));
      };
    };
    const auto codes = [&](int64_t t0) { return Operand<std::byte>{s_.stage + t0 * unit, unit, tiles * unit}; };
    const int64_t fours = (keys - first + 3) / 4;
    for_row_tiles(rows_, [&]<int R>(int64_t row) {
      const std::byte* weights = s_.weights + row * 2 * kKeyBlock;
      if (task_.v.type == KvType::kInt8) {
        for_lane_tiles<R, Lanes::kWideTiles>(0, tiles, [&]<int T>(int64_t t0) {
          wide_product<R, T>({weights + 2 * first, 2 * kKeyBlock, 0}, codes(t0), fours, *s_.ahead,
                             add_to_state(row, t0));
        });
      } else if (task_.v.type == KvType::kInt4) {
        for_lane_tiles<R, Lanes::kNarrowTiles>(0, tiles, [&]<int T>(int64_t t0) {
          narrow_product<R, T, false>({weights + first, 2 * kKeyBlock, 0}, codes(t0), fours, *s_.ahead,
                                      add_to_state(row, t0));
        });
      } else {
        for_lane_tiles<R, Lanes::kFloatTiles>(0, tiles, [&]<int T>(int64_t t0) {
          float* o = states + row * state_ + kTile + t0 * kTile;
          const Operand<float> p{s_.scores + row * kKeyBlock + first, kKeyBlock, 1};
          const Operand<float> v{reinterpret_cast<const float*>(s_.stage) + t0 * kTile, kTile, lanes_};
          float_product<R, T>(
              p, v, keys - first, *s_.ahead, [&](int r, int t) { return scaled(o + r * state_ + t * kTile, row + r); },
              [&](int r, int t, Lanes::F x) { Lanes::store(o + r * state_ + t * kTile, x); });
        });
      }
    });
  }

  // --- steps ---

  void one_split(int64_t split, float* states) {
    for (int64_t r = 0; r < rows_; ++r) {
      empty(states + r * state_, lanes_);
      Lanes::store(s_.sums + r * kTile, Lanes::zero());
      Lanes::store(s_.zero_sums + r * kTile, Lanes::zero());
    }
    for (int64_t r = 0; r < rows_; r += kTile) {
      Lanes::store(s_.most + r, Lanes::set1(kNoScore));
      Lanes::store(s_.found + r, Lanes::set1(kNoScore));
    }
    const int64_t from = larger(split * kSplitTokens, begin_ / kKeyBlock * kKeyBlock);
    const int64_t to = smaller((split + 1) * kSplitTokens, end_);
    for (int64_t start = from; start < to; start += kKeyBlock) {
      const int64_t keys = smaller(kKeyBlock, to - start);
      const int64_t first = larger(0, begin_ - start) / kTile;
      const int64_t last = (keys + kTile - 1) / kTile;
      look_ahead(start + kKeyBlock, smaller(start + 2 * kKeyBlock, end_));
      for (int64_t t = first, n = stage_tiles(task_.k.type); t < last; t += n) {
        stage_k(start, t, smaller(t + n, last));
        scores(t, smaller(t + n, last));
      }
      if (task_.v.has_scale) {
        for (int64_t t = first; t < last; ++t) {
          load_scales(task_.v, tile(task_.v, true, start + t * kTile), s_.v_scale + t * kTile, s_.v_zero + t * kTile);
        }
      }
      softmax(start, first, last);
      // Integer values: one exact sum over the whole step.
      const int64_t n = integer(task_.v.type) ? last - first : stage_tiles(task_.v.type);
      for (int64_t t = first; t < last; t += n) {
        const int64_t end = smaller(t + n, last);
        stage_v(start, t, end, smaller(keys, end * kTile));
        values(t * kTile, smaller(keys, end * kTile), t != first, states);
      }
      s_.ahead->fetch(INT64_MAX);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      float* state = states + r * state_;
      state[0] = s_.most[r];
      state[1] = Lanes::sum(Lanes::load(s_.sums + r * kTile));
      if (!task_.v.has_zero) continue;
      const Lanes::F zero = Lanes::set1(Lanes::sum(Lanes::load(s_.zero_sums + r * kTile)));
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
  ScorePass score_pass_[2] = {};  // some keys are not seen, all are
  WeightPass weight_pass_[2] = {};
};

int64_t scratch_bytes(int64_t rows, int64_t head_dim) {
  return Scratch(nullptr, rows, head_dim).bytes;
}

void attend(const AttendTask& task, int64_t first_split, int64_t last_split, float* states, std::byte* scratch) {
  Attend(task, scratch).splits(first_split, last_split, states);
}

void finish(const float* states, int64_t count, int64_t stride, int64_t head_dim, float static_scale, float* out) {
  const int64_t lanes = attend_lanes(head_dim);
  float merged[kTile + 1024];
  const float* state = states;
  // Merging one state into the empty one adds 0 to each of its numbers.
  if (count != 1 || !(states[0] > kNoScore)) {
    // Heads wider than the buffer are refused by can_implement.
    Attend::empty(merged, lanes);
    for (int64_t i = 0; i < count; ++i) Attend::merge_state(merged, states + i * stride, lanes);
    state = merged;
  }
  const Lanes::F factor = Lanes::set1(static_scale / state[1]);
  for (int64_t c = 0; c < lanes; c += kTile) {
    const Lanes::F x = Lanes::mul(Lanes::add(Lanes::load(state + kTile + c), Lanes::zero()), factor);
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
