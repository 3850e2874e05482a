#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "tensor/quantized_tensor.h"

namespace tare::quantize {

struct Form;

/// The forms of weight that tare makes. Each but the last is a way to choose scales (and zeros) from ranges, and then a
/// code for a value.
enum class GridKind {
  kInteger,  // w = s (q - z) per group: symmetric (z = 0, signed codes) or asymmetric (unsigned codes, integer zero)
  kMinimum,  // w = s q + lo per group, lo the least value itself (GGUF Q4_1)
  kProgressive,  // QoQ group: w = s1 (q s2 + min8), s2 u8 and min8 s8 per group, s1 f16 per row
  kQoqChannel,   // QoQ per channel: w = s q - zs, one f16 scale and zs per row
  kForm,         // as GridSpec::form says (forms/form.h): no ChosenGrid
};

/// How a symmetric scale follows from the largest magnitude.
enum class ScaleRule {
  kAbsmaxDivMax,       // s = absmax / (2^(b-1) - 1), codes -(2^(b-1)-1) .. 2^(b-1)-1
  kCompressedTensors,  // s = absmax / ((2^b - 1) / 2), codes -2^(b-1) .. 2^(b-1)-1
};

/// What a matrix should become.
struct GridSpec {
  GridKind kind = GridKind::kInteger;
  const Form* form = nullptr;  // kForm
  int bits = 4;
  int64_t group_size = 128;  // along K; 0 = the whole row; the last group of a row may be short
  bool per_tensor = false;   // one scale for all (kInteger)
  bool symmetric = true;     // kInteger
  ScaleRule scale_rule = ScaleRule::kAbsmaxDivMax;
  tensor::DType scale_dtype = tensor::DType::kF16;  // kF16, kBF16 or kF32
  int protected_range = 119;                        // kProgressive
  float shared_range = 0;  // kForm: largest magnitude of all matrices that share an outer scale; 0: of this one

  int64_t group_width(int64_t k) const { return group_size <= 0 || group_size > k ? k : group_size; }
  bool operator==(const GridSpec&) const = default;
};

/// "u4 g128 progressive p119", for reports.
std::string describe(const GridSpec& spec);
/// Errors: bits outside 2..8, a combination that does not exist.
Status check(const GridSpec& spec);
/// Errors: NaN or inf in w [N,K] (position named).
Status check_finite(const float* w, int64_t n, int64_t k);

/// Scales and zeros chosen for one matrix [N,K]; codes still open. What turns values into codes (RTN, GPTQ) only calls
/// `encode` and `decode`, so every algorithm works on every grid.
class ChosenGrid {
 public:
  ChosenGrid() = default;
  /// From ranges of w [N,K], row-major. clip: [N * groups] factors on each group's range, or empty (= 1).
  /// Zero ranges get scale 1; the range of an asymmetric group always includes 0. Errors: NaN or inf in w (position
  /// named); kForm.
  static Result<ChosenGrid> choose(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool,
                                   std::span<const float> clip = {});

  /// Ranges that lose least: for each group the factors on its least and greatest value (or on both, where the grid is
  /// symmetric) that minimize sum over k of weight[k] (w - decoded)^2 with nearest codes. weight [K] >= 0; columns of
  /// weight 0 count a little. Errors: as choose.
  static Result<ChosenGrid> search(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool,
                                   std::span<const float> weight);

  /// The numbers of one group as they count: decoded = scale * unit(code) + minimum.
  struct Group {
    float scale = 1;
    float minimum = 0;
    bool has_minimum = false;  // it is free, not 0
    float step = 0;            // both are multiples of it; 0: floats
  };
  Group group(int64_t row, int64_t group) const;
  /// Moves a group to the stored numbers nearest to these. False, and nothing changes: scale not positive, or the codes
  /// [columns of the group] would leave the range that the form promises.
  bool move(int64_t row, int64_t group, float scale, float minimum, const uint8_t* codes);
  /// What the scale multiplies: q, or q - zero.
  float unit(int64_t row, int64_t column, uint8_t code) const;
  int64_t group_first(int64_t group) const { return group * width_; }
  int64_t group_end(int64_t group) const { return std::min(k_, (group + 1) * width_); }

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t groups() const { return groups_; }
  const GridSpec& spec() const { return spec_; }

  /// Nearest code of a value at (row, column), ties to even, clamped. Any finite value is legal (GPTQ moves them).
  uint8_t encode(int64_t row, int64_t column, float value) const;
  float decode(int64_t row, int64_t column, uint8_t code) const;
  /// encode of a whole row: values [K] -> codes [K].
  void encode_row(int64_t row, const float* values, uint8_t* codes) const;

  /// The quantized tensor with these codes, [N*K] in row-major order.
  Result<tensor::QuantizedTensor> finish(std::span<const uint8_t> codes, std::string format) const;

 private:
  // One group's numbers, already rounded as they are stored.
  struct Cell {
    float scale = 1;    // kProgressive: s2
    float zero = 0;     // code units (kInteger asymmetric)
    float minimum = 0;  // kMinimum, kQoqChannel: added; kProgressive: min8
  };

  const Cell& cell(int64_t row, int64_t column) const {
    return cells_[static_cast<size_t>(spec_.per_tensor ? 0 : row * groups_ + column / width_)];
  }
  Cell choose_cell(const float* w, int64_t count, float clip, float row_scale) const;
  Cell cell_for(float least, float most, float row_scale) const;
  double loss(const Cell& cell, const float* w, const float* weight, int64_t count, float row_scale) const;
  static Result<ChosenGrid> start(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool);

  GridSpec spec_;
  int64_t n_ = 0, k_ = 0, width_ = 0, groups_ = 0;
  int lo_ = 0, hi_ = 15;           // code values (signed for symmetric)
  std::vector<Cell> cells_;        // [N, groups]
  std::vector<float> row_scales_;  // [N], kProgressive: s1
};

/// Nearest code for every weight: RTN; for a form, what the form says. clip as in ChosenGrid::choose; forms have none.
Result<tensor::QuantizedTensor> round_to_nearest(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                                 std::string format, ThreadPool& pool,
                                                 std::span<const float> clip = {});

}  // namespace tare::quantize
