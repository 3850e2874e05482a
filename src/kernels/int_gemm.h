#pragma once

#include <cstdint>

/// The seam between the drivers of the integer products (ISA-neutral, gemm_w4a8.cpp and its sisters) and their
/// micro-kernels (cpu/<isa>/). Plain structs and function pointers only: the files of an ISA folder are compiled with
/// their own flags and must not bring inline code of the standard library into the program.
///
/// Prepacked codes. The unsigned code of row n, column k is c (signed codes are shifted up; `zero` takes it back). Rows
/// come in row blocks of 16, up to 4 of them make a panel; columns come in blocks of 32, the last one padded with code
/// 0. A width of `bits` is the sum of planes of 8, 4, 2 and 1 bits, highest first, and a plane of p bits holds the 16 x
/// 32 codes of a row block and column block in p lines of 64 bytes:
///
///     |row 0: 4 bytes|row 1: 4 bytes|...|row 15: 4 bytes|     line j, byte i of a row, field s at bit s*p:
///                                                             k = j*(32/p) + s*4 + i
///
///     codes  [column blocks][row blocks of the panel][bits lines][64 bytes]
///
/// Inner scales stand in the same stream, so that few tokens read one stream of memory: before the first column block
/// of each group `group_bytes(row_blocks)` bytes, |a: u8 [row_blocks][16]|b: s8 [row_blocks][16]|padding to a line|.
///
/// So one line of 4-bit codes splits with a mask and a shift into two operands of `vpdpbusd` or two pairs of
/// `vpmaddubsw`, rows in the lanes: no horizontal sums. Both ISA levels read the same bytes.
namespace tare::kernels {

inline constexpr int kRowBlock = 16;       // rows of one line
inline constexpr int kPanelRowBlocks = 4;  // at most; 1, 2 or 4
inline constexpr int kPanelRows = kRowBlock * kPanelRowBlocks;
inline constexpr int kColumnBlock = 32;  // columns of one block
inline constexpr int kLineBytes = 64;

/// What all panels of a matrix share.
struct IntShape {
  int64_t column_blocks = 0;  // ceil(K / 32)
  int64_t group_blocks = 0;   // column blocks of one inner group; 0 = no inner scales
  int64_t groups = 0;         // ceil(column_blocks / group_blocks)
  int64_t group_pairs = 0;    // ceil(groups / 2)
  int64_t chunk_blocks = 0;   // column blocks expanded at a time
  int64_t k = 0;
  bool wide_scales = false;  // some inner scale times the largest code exceeds a byte
  bool fits_s8 = false;      // all a*c + b are proper s8, as QoQ makes them
};

/// The rows of one panel. Arrays have row_blocks * 16 entries, zero beyond `rows`.
struct IntPanel {
  const uint8_t* codes = nullptr;
  const float* scale = nullptr;         // S
  const float* min = nullptr;           // R or nullptr
  const float* bias = nullptr;          // or nullptr
  const int32_t* zero = nullptr;        // integer zero of the codes, or nullptr when all are 0
  const int32_t* weight_sum = nullptr;  // sum over k of the integer weights, for activations with a zero
  int32_t row_blocks = 0;
  int32_t rows = 0;
};

/// Bytes of the inner scales and minima of one group of one panel.
constexpr int64_t group_bytes(int64_t row_blocks) {
  return row_blocks < 2 ? kLineBytes : row_blocks * 2 * kRowBlock;
}

/// Tokens [begin, end) of the activations.
struct IntTokens {
  const int8_t* x = nullptr;            // row-major, padded with 0 to column_blocks * 32
  const int16_t* x16 = nullptr;         // the same as s16 [M][column_blocks * 32], where the micro-kernel wants it
  const int16_t* group_sums = nullptr;  // [M][group_pairs][2]: sum of x over each inner group
  int64_t stride = 0;
  const float* scale = nullptr;
  const int32_t* zero = nullptr;  // or nullptr
  const int32_t* sum = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Micro-kernels of one format on one ISA level.
struct IntGemmOps {
  /// y[m][n] of the tokens and rows at hand; out points at row 0, column 0 of the panel. Accumulators are exact int32;
  /// the order of the float steps is that of linear.h. scratch: `scratch_bytes` below, 64-byte aligned.
  void (*panel)(const IntShape&, const IntPanel&, const IntTokens&, float* out, int64_t out_stride,
                uint8_t* scratch) = nullptr;
  /// Fills group_sums / x16 of tokens [begin, end); nullptr when nothing is wanted.
  void (*group_sums)(const IntShape&, const int8_t* x, int64_t stride, int64_t begin, int64_t end,
                     int16_t* sums) = nullptr;
  bool sums_unless_s8 = false;  // group_sums are read only where some a*c + b is no s8
  void (*widen)(const IntShape&, const int8_t* x, int64_t stride, int64_t begin, int64_t end, int16_t* x16) = nullptr;
};

/// Per-thread scratch of `panel` for `tokens` tokens: one chunk of expanded codes and the int32 accumulators.
constexpr int64_t int_scratch_bytes(int64_t chunk_blocks, int64_t tokens) {
  return chunk_blocks * kPanelRowBlocks * 8 * kLineBytes + tokens * kPanelRows * 4 + kLineBytes;
}

extern const IntGemmOps kW4A8Avx512Vnni;
extern const IntGemmOps kW8A8Avx512Vnni;
extern const IntGemmOps kW4A8Avx2;
extern const IntGemmOps kW8A8Avx2;

}  // namespace tare::kernels
