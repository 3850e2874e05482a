#pragma once

#include <cstdint>

#include "kernels/int_gemm.h"

/// The seam between the driver of gemm_wna8 (codes of 1 to 8 bits under float scales per group) and its micro-kernels.
/// Codes lie as int_gemm.h describes. Before the first column block of each record (one group, or the two groups of 16
/// columns that share a block) stand the numbers of its groups, so that the weight is one stream of memory:
///
///     group   |scale [row_blocks][16]|zero [row_blocks][16]|minimum [row_blocks][16]|   each of its field type
///     record  |group|(group)|padding to a line|
///
/// Of one group g, with exact int32 sums of codes c and activations q:
///     f = float(sum c*q) - zero * float(sum q)       exact: both terms stay below 2^24
///     C = fma(scale, f, C);  C = fma(minimum, float(sum q), C)
/// and y = C * sx (+ bias), groups in order: the same on every ISA level.
namespace tare::kernels {

/// How the numbers of a group are stored; kConstant takes no bytes.
enum class FieldType : int32_t { kNone, kConstant, kU8, kS8, kF16, kBF16, kF32 };

constexpr int64_t field_bytes(FieldType type) {
  return type == FieldType::kNone || type == FieldType::kConstant ? 0
         : type == FieldType::kU8 || type == FieldType::kS8       ? 1
         : type == FieldType::kF16 || type == FieldType::kBF16    ? 2
                                                                  : 4;
}

struct GroupShape {
  int64_t column_blocks = 0;
  int64_t groups = 0;
  int64_t group_halves = 0;   // 16-column halves of a column block in one group
  int64_t record_blocks = 0;  // column blocks of one record
  int64_t record_groups = 0;  // 1, or 2 where a block holds two groups
  int64_t chunk_blocks = 0;   // a multiple of record_blocks
  int64_t outer_groups = 0;   // groups that share an outer scale and minimum; 0 = there are none
  int64_t k = 0;
  FieldType scale = FieldType::kF32;
  FieldType zero = FieldType::kNone;
  FieldType min = FieldType::kNone;
  float zero_constant = 0;
  int32_t bits = 4;
};

constexpr int64_t group_number_bytes(const GroupShape& shape, int64_t row_blocks) {
  return (field_bytes(shape.scale) + field_bytes(shape.zero) + field_bytes(shape.min)) * row_blocks * kRowBlock;
}
constexpr int64_t record_bytes(const GroupShape& shape, int64_t row_blocks) {
  return (shape.record_groups * group_number_bytes(shape, row_blocks) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

struct GroupPanel {
  const uint8_t* codes = nullptr;
  const float* outer_scale = nullptr;  // [outer groups][row_blocks][16]
  const float* outer_min = nullptr;    // the same, or nullptr
  const float* bias = nullptr;
  int32_t row_blocks = 0;
  int32_t rows = 0;
};

struct GroupTokens {
  const int8_t* x = nullptr;     // packed column order, padded with 0
  const int16_t* x16 = nullptr;  // the same as s16 [M][column_blocks * 32], where the micro-kernel wants it
  const float* sums = nullptr;   // [M][groups]: sum of x over each group
  int64_t stride = 0;
  const float* scale = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

struct GroupGemmOps {
  /// y of the tokens and rows at hand. scratch: int_scratch_bytes, 64-byte aligned.
  void (*panel)(const GroupShape&, const GroupPanel&, const GroupTokens&, float* out, int64_t out_stride,
                uint8_t* scratch) = nullptr;
  /// Group sums of tokens [begin, end).
  void (*sums)(const GroupShape&, const int8_t* x, int64_t stride, int64_t begin, int64_t end, float* sums) = nullptr;
  /// x as s16; nullptr when this width does not want it.
  void (*widen)(const GroupShape&, const int8_t* x, int64_t stride, int64_t begin, int64_t end, int16_t* x16) = nullptr;
};

/// By bits, 1..8. nullptr never.
const GroupGemmOps& wna8_ops_avx512vnni(int32_t bits);
const GroupGemmOps& wna8_ops_avx2(int32_t bits);

}  // namespace tare::kernels
