#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "numerics/packing.h"
#include "numerics/rounding.h"
#include "quantize/forms/form.h"

namespace tare::quantize {

using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedTensor;

namespace {

constexpr float kNorm = 0.7f;   // p of the L_p norm
constexpr float kBeta = 10.0f;  // weight of the split, grows by kGrowth a round
constexpr float kGrowth = 1.01f;
constexpr int kRounds = 20;

// One matrix in groups: multiplier (the inverse of the scale, fixed) and zero of each, in code units.
struct Groups {
  int64_t n = 0, k = 0, width = 0, count = 0;  // count: groups a row
  float highest = 15;
  std::vector<float> multiplier, zero;  // [N * count]

  int64_t first(int64_t group) const { return group * width; }
  int64_t last(int64_t group) const { return std::min((group + 1) * width, k); }
};

// The range's own scale and zero: max -> highest code, min -> 0, the zero rounded.
Groups start(const GridSpec& spec, const float* w, int64_t n, int64_t k) {
  Groups out{.n = n, .k = k, .width = spec.group_width(k)};
  out.count = k == 0 ? 0 : ceil_div(k, out.width);
  out.highest = static_cast<float>((1 << spec.bits) - 1);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t g = 0; g < out.count; ++g) {
      const auto [least, most] = std::minmax_element(w + row * k + out.first(g), w + row * k + out.last(g));
      const float span = *most - *least;
      // Spans that are next to nothing keep scale 1, and none is finer than 1 / 20000.
      const float multiplier = span <= 1e-4f ? 1.0f : std::min(1.0f / span * out.highest, 2e4f);
      out.multiplier.push_back(multiplier);
      out.zero.push_back(std::nearbyintf(-*least * multiplier));
    }
  }
  return out;
}

inline float code_of(float value, float multiplier, float zero, float highest) {
  return std::clamp(std::nearbyintf(value * multiplier + zero), 0.0f, highest);
}

// prox of the L_p norm: what is left of an error when it is allowed to be sparse.
inline float shrink(float x, float beta) {
  const float size = std::abs(x);
  // Below the root of |x| = |x|^(p-1) / beta nothing is left: no power is needed for most values.
  if (size < 0.1f) return 0.0f;
  return std::copysign(std::max(size - std::pow(size, kNorm - 1.0f) / beta, 0.0f), x);
}

// Sum in the order of the library's tensors: 8 lanes in 4 chains, the chains and then the lanes after one another.
class LaneSum {
 public:
  explicit LaneSum(int64_t count) : vectors_(count / 8), chained_(count / 32 * 4) {}
  void add(int64_t i, float value) {
    const int64_t vector = i / 8;
    if (vector >= vectors_) {
      tail_ += value;
    } else {
      chains_[vector < chained_ ? vector % 4 : 0][i % 8] += value;
    }
  }
  float total() const {
    float sum = tail_;
    for (size_t lane = 0; lane < 8; ++lane) {
      sum += ((chains_[0][lane] + chains_[1][lane]) + chains_[2][lane]) + chains_[3][lane];
    }
    return sum;
  }

 private:
  int64_t vectors_, chained_;
  float chains_[4][8] = {};
  float tail_ = 0;
};

// One round for one group: the zero that makes up for the shrunk errors. Returns the sum of |w - decoded|.
double move_zero(const Groups& groups, size_t at, const float* w, int64_t count, float beta, float& zero) {
  const float multiplier = groups.multiplier[at];
  const float old = groups.zero[at];
  double error = 0;
  LaneSum sum(count);
  for (int64_t i = 0; i < count; ++i) {
    const float code = code_of(w[i], multiplier, old, groups.highest);
    const float decoded = (code - old) / multiplier;
    const float e = w[i] - decoded;
    error += static_cast<double>(std::abs(e));
    const float kept = w[i] - shrink(e, beta);
    sum.add(i, code - kept * multiplier);
  }
  zero = sum.total() / static_cast<float>(count);
  return error;
}

void optimize(Groups& groups, const float* w, ThreadPool& pool) {
  std::vector<float> moved(groups.zero.size());
  std::vector<double> error(static_cast<size_t>(groups.n));
  double best = 1e4 * static_cast<double>(groups.n * groups.k);
  float beta = kBeta;
  for (int round = 0; round < kRounds; ++round) {
    pool.parallel_for(groups.n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        double sum = 0;
        for (int64_t g = 0; g < groups.count; ++g) {
          const auto at = static_cast<size_t>(row * groups.count + g);
          sum += move_zero(groups, at, w + row * groups.k + groups.first(g), groups.last(g) - groups.first(g), beta,
                           moved[at]);
        }
        error[static_cast<size_t>(row)] = sum;
      }
    });
    groups.zero = moved;
    beta *= kGrowth;
    double total = 0;
    for (const double e : error) total += e;
    // The error is that of the zeros before this move, and it decides whether another follows.
    if (total >= best) break;
    best = total;
  }
}

Result<QuantizedTensor> finish(const GridSpec& spec, const Groups& groups, const float* w, ThreadPool& pool) {
  const int64_t n = groups.n, k = groups.k;
  const int64_t stride = numerics::packed_bytes(k, spec.bits);
  std::vector<std::byte> codes(static_cast<size_t>(n * stride));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t g = 0; g < groups.count; ++g) {
        const auto at = static_cast<size_t>(row * groups.count + g);
        for (int64_t i = groups.first(g); i < groups.last(g); ++i) {
          const float code = code_of(w[row * k + i], groups.multiplier[at], groups.zero[at], groups.highest);
          numerics::write_code(codes.data() + row * stride, i * spec.bits, spec.bits, static_cast<uint32_t>(code));
        }
      }
    }
  });
  std::vector<float> scales;
  scales.reserve(groups.multiplier.size());
  for (const float m : groups.multiplier) scales.push_back(1.0f / m);
  tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kUint, .bits = spec.bits};
  f.codes = Buffer::own(std::move(codes));
  f.code_stride = stride;
  TARE_ASSIGN(f.a, Grid::make(GridType::kF32, n, k, 1, groups.width, Buffer::own(std::move(scales))));
  TARE_ASSIGN(Grid zero, Grid::make(GridType::kF32, n, k, 1, groups.width, Buffer::own(groups.zero)));
  f.origin.bytes = static_cast<int64_t>(f.codes.size() + f.a->values.size() + zero.values.size());
  f.z = std::move(zero);
  return QuantizedTensor::make(std::move(f));
}

}  // namespace

Result<QuantizedTensor> quantize_hqq(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  Groups groups = start(spec, w, n, k);
  optimize(groups, w, pool);
  return finish(spec, groups, w, pool);
}

Result<QuantizedTensor> quantize_hqq_nearest(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                             ThreadPool& pool) {
  return finish(spec, start(spec, w, n, k), w, pool);
}

}  // namespace tare::quantize
