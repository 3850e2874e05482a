#pragma once

#include <cstddef>
#include <cstdint>

/// Products of a few rows with a staged key or value block, for attention_body.h; included after an instruction set's
/// lanes.h. A register tile only groups chains: each result has its own accumulator and fixed order.
namespace tare::kernels {
namespace {

constexpr float kWideMost = 32639;  // 127 * 256 + 127: largest left operand of wide products on all instruction sets
constexpr float kSignedMost = 127;
constexpr float kUnsignedMost = 255;

/// Cache lines to be fetched while products run: what the next step will read. Pages lie anywhere, so hardware does not
/// guess them; asked for all at once they would stall instead of overlap.
struct Ahead {
  struct Run {
    const std::byte* at;
    int64_t lines;
  };
  Run runs[64];
  int64_t count = 0;
  int64_t next = 0;
  int64_t per_chunk = 0;  // lines for every 8 steps of a product, 0: products run through
  int64_t per_pass = 0;   // lines for every pass over a row, and for every tile that is staged

  /// Returns the number of lines added.
  int64_t add(const std::byte* from, int64_t bytes) {
    runs[count++] = {from, (bytes + 63) / 64};
    return runs[count - 1].lines;
  }
  void fetch(int64_t most) {
    while (most > 0 && next < count) {
      Run& run = runs[next];
      const std::byte* at = run.at;
      const int64_t lines = run.lines < most ? run.lines : most;
      for (int64_t i = 0; i < lines; ++i) Lanes::prefetch(at + 64 * i);
      run.at = at + 64 * lines;
      run.lines -= lines;
      most -= lines;
      if (run.lines == 0) ++next;
    }
  }
};

constexpr int64_t kChunk = 8;

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

/// One operand: rows or tiles `stride` apart, steps `step` apart; floats or bytes.
template <class T>
struct Operand {
  const T* at = nullptr;
  int64_t stride = 0;
  int64_t step = 0;
};

/// acc[r][t] = start(r, t), then += left[r][i] * right[i][t] for each step i; done(r, t, acc).
template <int R, int T, class Start, class Done>
void float_product(Operand<float> left, Operand<float> right, int64_t steps, Ahead& ahead, Start start, Done done) {
  // Unrolled by demand: otherwise the sums pass through memory before and after the steps.
  Lanes::F acc[R][T];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) acc[r][t] = start(r, t);
  }
  const int64_t chunk = ahead.per_chunk > 0 ? kChunk : steps;
  for (int64_t i = 0; i < steps;) {
    ahead.fetch(ahead.per_chunk);
    for (const int64_t end = i + chunk < steps ? i + chunk : steps; i < end; ++i) {
      Lanes::F b[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) b[t] = Lanes::load(right.at + i * right.step + t * right.stride);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const Lanes::F a = Lanes::set1(left.at[r * left.stride + i]);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) acc[r][t] = Lanes::fma(a, b[t], acc[r][t]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) done(r, t, acc[r][t]);
  }
}

/// The same over integers, exactly: 15-bit left values, 8-bit codes.
template <int R, int T, class Done>
void wide_product(Operand<std::byte> left, Operand<std::byte> right, int64_t steps, Ahead& ahead, Done done) {
  Lanes::WideSums<R, T> sums;
  sums.clear();
  for (int64_t i = 0; i < steps;) {
    ahead.fetch(ahead.per_chunk);
    for (const int64_t end = i + kChunk < steps ? i + kChunk : steps; i < end; ++i) {
      sums.step(left.at + 8 * i, left.stride, right.at + i * right.step, right.stride);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) done(r, t, sums.sum(r, t));
  }
}

/// The same with bytes on the left and 4-bit codes.
template <int R, int T, bool SignedLeft, class Done>
void narrow_product(Operand<std::byte> left, Operand<std::byte> right, int64_t steps, Ahead& ahead, Done done) {
  Lanes::NarrowSums<R, T, SignedLeft> sums;
  sums.clear();
  for (int64_t i = 0; i < steps;) {
    ahead.fetch(ahead.per_chunk);
    for (int half = 0; half < 2; ++half) {
      for (const int64_t end = i + kChunk / 2 < steps ? i + kChunk / 2 : steps; i < end; ++i) {
        sums.step(left.at + 4 * i, left.stride, right.at + i * right.step, right.stride);
      }
      sums.flush();
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) done(r, t, sums.sum(r, t));
  }
}

}  // namespace
}  // namespace tare::kernels
