#pragma once

#include <cstddef>
#include <cstdint>

/// Matrix products with f32 activations over dense and coded weights: the layout that all ISA levels share. Plain data
/// only, because the files that are compiled for one ISA include it.
///
/// Lanes are outputs: 16 rows of w make a panel, 4 panels make a block, and a step of a panel is 64 bytes that hold
/// `unit` columns of its 16 rows:
///
///     codes: |block 0: step 0: panel 0 (64 bytes) .. panel P-1|step 1: panel 0 ..|..|block 1: ...
///     a step:  f32    unit 1   row r in dword r
///              bf16   unit 2   row r in dword r: column 0 in the low half, column 1 in the high half
///              f16    unit 2   column 0 of rows 0..15, column 1 of rows 0..15
///              8 bit  unit 4   row r in dword r: column j in byte j
///              fp8    unit 4   row r: column 0 in byte 2r, column 1 in byte 2r + 32, column 2 in 2r + 1, column 3 in
///              2r + 33 4 bit  unit 8   row r in dword r: column j in bits [4j, 4j + 4) 2 bit  unit 16  row r in dword
///              r: column j in bits [2j, 2j + 2)
///
/// Columns are cut into groups that share scales; act-order columns are gathered so that a group is contiguous; each
/// group is padded with code "0" and token value 0 to whole steps. An output is one chain, the same for every M:
///     inner = 0;  for k in the group, in order: inner = fma(x[k], c[k], inner)
///     acc = fma(scale[group], inner, acc);  acc = fma(offset[group], sum of x over the group, acc)
/// or, for groups under 32 columns (`direct`): acc = fma(x[k], scale * c[k] + offset, acc).
/// Here scale = outer * inner scale, offset = factor * minimum - scale * zero.
namespace tare::kernels {

/// kInt8: s8. kInt4: unsigned nibbles with one integer zero for all, which decoding subtracts.
enum class FloatCode : uint8_t { kF32, kBF16, kF16, kInt8, kE4M3, kE5M2, kInt4, kLut4, kLut2 };

/// Columns of one 64-byte step.
constexpr int unit_of(FloatCode code) {
  switch (code) {
    case FloatCode::kF32:
      return 1;
    case FloatCode::kBF16:
    case FloatCode::kF16:
      return 2;
    case FloatCode::kInt8:
    case FloatCode::kE4M3:
    case FloatCode::kE5M2:
      return 4;
    case FloatCode::kInt4:
    case FloatCode::kLut4:
      return 8;
    case FloatCode::kLut2:
      return 16;
  }
  return 1;
}

/// How a plane of scales or offsets is stored: the smallest type that holds all of its numbers exactly.
enum class PlaneType : uint8_t { kNone, kF32, kF16, kBF16, kS8, kU8, kE4M3, kE8M0 };

constexpr int plane_bytes(PlaneType type) {
  return type == PlaneType::kNone                              ? 0
         : type == PlaneType::kF32                             ? 4
         : type == PlaneType::kF16 || type == PlaneType::kBF16 ? 2
                                                               : 1;
}

/// Numbers [panels][columns][16].
struct Plane {
  PlaneType type = PlaneType::kNone;
  int64_t columns = 0;
  const std::byte* data = nullptr;
};

/// What multiplies the offset plane.
enum class OffsetFactor : uint8_t { kOne, kOuter, kOwn };

struct FloatMatrix {
  FloatCode code = FloatCode::kF32;
  int64_t n = 0;
  int64_t k = 0;         // columns of the matrix
  int64_t k_padded = 0;  // columns of all steps
  int64_t panels = 0;    // ceil(n / 16)
  int64_t blocks = 0;
  int64_t groups = 1;
  const int32_t* group_step = nullptr;  // [groups + 1]: first step of each group
  const std::byte* codes = nullptr;
  float table[16] = {};     // kLut4, kInt4 (zero subtracted); kLut2 (four values, four times)
  int32_t nibble_zero = 0;  // kInt4
  bool scaled = false;      // has scales
  bool direct = false;
  Plane scale;                            // [panels][groups][16]; none = 1
  Plane outer;                            // [panels][outer columns][16]; none = 1
  const int32_t* outer_column = nullptr;  // [groups], when outer is there
  Plane zero;                             // [panels][groups][16], with its sign turned
  float zero_constant = 0;                // the same for all, sign turned; beside the plane
  Plane offset;                           // [panels][groups][16]: minima; none = 0
  OffsetFactor offset_factor = OffsetFactor::kOne;
  Plane own;                            // OffsetFactor::kOwn
  const int32_t* own_column = nullptr;  // [groups]
  const float* bias = nullptr;          // [n], or none
};

/// Tokens as the loops read them: rows of k_padded f32 in the column order of the codes, padding 0.
struct FloatTokens {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t m = 0;
  const float* group_sums = nullptr;  // [m][groups], when there are offsets
};

/// One ISA level.
struct FloatGemmOps {
  /// Few tokens: codes are decoded in registers.
  void (*decode_in_registers)(const FloatMatrix&, int64_t block_begin, int64_t block_end, const FloatTokens&,
                              float* out, int64_t out_stride);
  /// Many tokens (at most kPanelTokens): a block is decoded into `scratch`, then multiplied.
  void (*decode_to_panel)(const FloatMatrix&, int64_t block_begin, int64_t block_end, const FloatTokens&, float* out,
                          int64_t out_stride, std::byte* scratch);
  /// sums[token][group] of x over the columns of each group.
  void (*sum_groups)(const FloatMatrix&, const FloatTokens&, int64_t begin, int64_t end, float* sums);
};

inline constexpr int64_t kPanelsPerBlock = 4;  // the last block may have fewer
inline constexpr int64_t kPanelTokens = 192;   // a multiple of the six tokens of a tile

inline constexpr int64_t kPanelColumns = 128;  // decoded at a time: 32 KiB, which stays in L1

/// Scratch of decode_to_panel on one thread: the decoded columns of a block, and two sums per token and output.
inline constexpr int64_t kPanelScratchBytes = (kPanelColumns + 2 * kPanelTokens) * kPanelsPerBlock * 16 * 4;

extern const FloatGemmOps kFloatGemmAvx2;
extern const FloatGemmOps kFloatGemmAvx512;

}  // namespace tare::kernels
