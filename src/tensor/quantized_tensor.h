#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "tensor/scheme.h"
#include "tensor/tensor.h"

namespace tare::tensor {

/// Element type of a grid of scales, zeros or minima. u4, u6 and s6 values are held one to a byte; what a file spends
/// on them is in `Origin`. kLut256 is a byte that indexes the tensor's scale table (nested rule).
enum class GridType { kU4, kU6, kS6, kU8, kS8, kS16, kE4M3, kE8M0, kLut256, kF16, kBF16, kF32 };

bool is_integer(GridType type);
int grid_element_bytes(GridType type);
std::string_view grid_type_name(GridType type);

/// One number per tile of an [N,K] matrix: per tensor [N,K], row [1,K], group [1,g], super-block [1,256], block
/// [128,128]. Tiles at the edges may be short. Tile (i, j) covers rows [i*tile_n, ...) and columns [j*tile_k, ...),
/// counted from `origin`, which lets a view start inside a tile.
struct Grid {
  GridType type = GridType::kF32;
  int64_t tile_n = 1;
  int64_t tile_k = 1;
  int64_t tiles_n = 0;
  int64_t tiles_k = 0;
  int64_t stride = 0;    // elements from one row of tiles to the next
  int64_t origin_n = 0;  // 0 <= origin_n < tile_n
  int64_t origin_k = 0;
  Buffer values;

  /// A grid over [n, k] with ceil(n/tile_n) x ceil(k/tile_k) numbers, row-major. Tiles larger than the matrix are cut
  /// to it. Errors: a buffer of another size; NaN or inf (named by tile); an integer outside its width.
  static Result<Grid> make(GridType type, int64_t n, int64_t k, int64_t tile_n, int64_t tile_k, Buffer values);
  /// For tensors with group_of_k: `groups` columns of tiles instead of ceil(k/tile_k).
  static Result<Grid> make_mapped(GridType type, int64_t n, int64_t groups, int64_t tile_n, int64_t tile_k,
                                  Buffer values);

  int64_t row_index(int64_t n) const { return (n + origin_n) / tile_n * stride; }
  int64_t column_index(int64_t k) const { return (k + origin_k) / tile_k; }

  /// The number at a flat index (row_index + column_index), as f32; integers exactly. kLut256 gives the table index.
  float value(int64_t index) const;
  /// Integer types only.
  int32_t integer(int64_t index) const;
};

/// Where a tensor came from and what it costs there, scales, zeros and padding included.
struct Origin {
  std::string format;
  int64_t bytes = 0;
  bool sparse_2_4 = false;
};

/// Codebooks of a vector-quantized tensor: decode(n, k) = sum over c of books[c][code[n/out][k/in][c]][n%out][k%in].
struct VectorCodebooks {
  int64_t count = 1;
  int64_t out_group = 1;
  int64_t in_group = 8;
  Buffer books;  // f16 [count, 2^bits, out_group, in_group]
};

/// The parts of a quantized matrix [N, K] (N out_features, K in_features), natural k order. See QuantizedTensor.
struct QuantizedFields {
  int64_t n = 0;
  int64_t k = 0;

  // Codes: row-major, LSB first, each row padded to whole bytes. For kVq: codes [N/out, K/in, count].
  CodeKind kind = CodeKind::kUint;
  int bits = 4;
  Buffer codes;
  int64_t code_stride = 0;      // bytes from one row to the next; 0 = packed_bytes(codes per row)
  int64_t code_bit_offset = 0;  // of column 0 inside a row (views)

  std::vector<float> lut;  // kLut: 2^bits values
  std::optional<VectorCodebooks> vq;

  Rule rule = Rule::kScaleFirst;
  std::optional<Grid> a;  // inner multiplier, none = 1
  std::optional<Grid> A;  // outer multiplier, none = 1
  bool A_divides = false;
  // kScaleFirst: A * (a * (c - z)) instead of (A * a) * (c - z), where the files' own tools multiply (or divide) in
  // that order. It decides last bits only, so it is no part of QuantSpec.
  bool code_first = false;
  std::variant<std::monostate, float, Grid> z;  // zero point in code units: none, constant, or a grid
  std::optional<Grid> b;                        // additive term
  std::optional<Grid> B;                        // its outer multiplier, none = 1
  bool B_is_A = false;                          // or the same as A
  bool round_inner = false;  // kIntegerFirst with float a: a*(c-z) is rounded to a whole number (QQQ)
  std::shared_ptr<const std::vector<float>> scale_lut;  // kNested: 256 values
  float nested_offset = 0;                              // kNested

  // Column -> column of tiles of a, z and b, instead of k / tile_k: act-order and unequal groups. [K] or empty.
  std::shared_ptr<const std::vector<int32_t>> group_of_k;
  int64_t group_of_k_begin = 0;  // first entry of this view

  Origin origin;
};

/// A quantized matrix that says exactly what its file says. Immutable; copies and views share bytes. The only
/// definition of what it means is `dequantize`.
class QuantizedTensor {
 public:
  /// Checks sizes, ranges and finiteness. Errors name the field.
  static Result<QuantizedTensor> make(QuantizedFields fields);

  const QuantizedFields* operator->() const { return &fields_; }
  const QuantizedFields& fields() const { return fields_; }
  int64_t n() const { return fields_.n; }
  int64_t k() const { return fields_.k; }

  QuantSpec spec() const;
  /// Bits per weight of the file this came from.
  double bits_per_weight() const;

  /// Rows [begin, end): any cut. Shares bytes.
  Result<QuantizedTensor> rows(int64_t begin, int64_t end) const;
  /// Columns [begin, end): refused where the cut is off a grid of scales. With group_of_k the map is sliced and all
  /// scales stay. Shares bytes.
  Result<QuantizedTensor> cols(int64_t begin, int64_t end) const;

  /// The raw code at (n, k), before any meaning. Not for kVq.
  uint32_t code(int64_t n, int64_t k) const;
  /// Column of tiles that k uses in a grid without / with the act-order map.
  int64_t group(const Grid& grid, int64_t k) const;

 private:
  explicit QuantizedTensor(QuantizedFields fields) : fields_(std::move(fields)) {}
  QuantizedFields fields_;
};

/// The value of each code of a kind (not kVq): 2^bits floats.
std::vector<float> code_values(const QuantizedFields& fields);

/// Writes rows [begin, end) of w as f32, row-major [end - begin, K]. This is the meaning of a quantized tensor: every
/// reader, writer and kernel is tested against it. Rounding is as `Rule` says.
void dequantize(const QuantizedTensor& source, int64_t begin, int64_t end, float* out);
std::vector<float> dequantize(const QuantizedTensor& source);

/// A weight of a model: dense or quantized.
using Weight = std::variant<Tensor, QuantizedTensor>;
Shape shape_of(const Weight& weight);
/// All of it as f32 [N, K].
Result<std::vector<float>> to_f32(const Weight& weight);

}  // namespace tare::tensor
