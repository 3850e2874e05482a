#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"

namespace tare::tensor {

/// Element types of dense tensors, as safetensors names them. The sub-byte and complex ones are carried, not computed
/// on.
enum class DType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E4M3Fnuz,
  kF8E5M2,
  kF8E5M2Fnuz,
  kF8E8M0,
  kI64,
  kU64,
  kI32,
  kU32,
  kI16,
  kU16,
  kI8,
  kU8,
  kBool,
  kC64,
  kF6E2M3,
  kF6E3M2,
  kF4,
};

/// Bits of one element.
int dtype_bits(DType dtype);
/// The safetensors spelling ("F32", "BF16", "F8_E4M3", ...).
std::string_view dtype_name(DType dtype);
Result<DType> parse_dtype(std::string_view safetensors_name);

using Shape = std::vector<int64_t>;

/// Number of elements; an error on overflow or a negative extent. An empty shape is a scalar: one element.
Result<int64_t> element_count(const Shape& shape);
/// "[3, 4]"
std::string shape_text(const Shape& shape);

/// A dense, contiguous, row-major, read-only array over shared bytes (a mapped file or memory).
struct Tensor {
  DType dtype = DType::kF32;
  Shape shape;
  Buffer data;

  /// Errors: the buffer is not exactly as long as dtype and shape say.
  static Result<Tensor> make(DType dtype, Shape shape, Buffer data);
  static Tensor from_f32(Shape shape, std::vector<float> values);

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t count() const;

  /// Rows [begin, end) along the first axis, sharing bytes. The range must lie inside.
  Tensor rows(int64_t begin, int64_t end) const;
};

/// The raw elements. Only for tensors whose bytes are aligned for T (memory that tare made; mapped files promise
/// nothing).
template <class T>
std::span<const T> elements(const Tensor& t) {
  return {reinterpret_cast<const T*>(t.data.data()), t.data.size() / sizeof(T)};
}

/// Converts `count` elements from `first` on to f32 (exact wherever f32 can hold the value).
/// Errors: a dtype that has no f32 form here (complex, sub-byte).
Status to_f32(const Tensor& source, int64_t first, int64_t count, float* out);
Result<std::vector<float>> to_f32(const Tensor& source);

}  // namespace tare::tensor
