#include "tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/checked.h"
#include "numerics/mini_float.h"

namespace tare::tensor {

namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kF64, "F64", 64},       {DType::kF32, "F32", 32},
    {DType::kF16, "F16", 16},       {DType::kBF16, "BF16", 16},
    {DType::kF8E4M3, "F8_E4M3", 8}, {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2, "F8_E5M2", 8}, {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kF8E8M0, "F8_E8M0", 8}, {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},       {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},       {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},       {DType::kI8, "I8", 8},
    {DType::kU8, "U8", 8},          {DType::kBool, "BOOL", 8},
    {DType::kC64, "C64", 64},       {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6}, {DType::kF4, "F4", 4},
};

const DTypeRow& row_of(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  return kDTypes[0];
}

template <class T, class Convert>
void convert_run(const Tensor& source, int64_t first, int64_t count, float* out, Convert convert) {
  const std::byte* at = source.data.data() + first * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, at + i * static_cast<int64_t>(sizeof(T)), sizeof(T));  // files do not promise alignment
    out[i] = convert(value);
  }
}

}  // namespace

int dtype_bits(DType dtype) {
  return row_of(dtype).bits;
}
std::string_view dtype_name(DType dtype) {
  return row_of(dtype).name;
}

Result<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return invalid_input("unknown dtype",
                       {.expected = "a safetensors dtype", .found = fmt::format("'{}'", name.substr(0, 40))});
}

Result<int64_t> element_count(const Shape& shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) return invalid_input("negative extent", {.found = shape_text(shape)});
    const auto product = checked_mul(count, static_cast<uint64_t>(extent));
    if (!product || *product > static_cast<uint64_t>(INT64_MAX) / 64) {
      return invalid_input("shape too large", {.found = shape_text(shape)});
    }
    count = *product;
  }
  return static_cast<int64_t>(count);
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<Tensor> Tensor::make(DType dtype, Shape shape, Buffer data) {
  TARE_ASSIGN(const int64_t count, element_count(shape));
  const int64_t bits = count * dtype_bits(dtype);
  if (bits % 8 != 0 || static_cast<uint64_t>(bits / 8) != data.size()) {
    return invalid_input("tensor size does not match its bytes",
                         {.expected = fmt::format("{} bytes for {} {}", bits / 8, dtype_name(dtype), shape_text(shape)),
                          .found = fmt::format("{} bytes", data.size())});
  }
  return Tensor{dtype, std::move(shape), std::move(data)};
}

Tensor Tensor::from_f32(Shape shape, std::vector<float> values) {
  return Tensor{DType::kF32, std::move(shape), Buffer::own(std::move(values))};
}

int64_t Tensor::count() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  const size_t row_bytes = shape[0] == 0 ? 0 : data.size() / static_cast<size_t>(shape[0]);
  Shape cut = shape;
  cut[0] = end - begin;
  const size_t offset = static_cast<size_t>(begin) * row_bytes;
  return Tensor{dtype, std::move(cut), data.slice(offset, static_cast<size_t>(end - begin) * row_bytes)};
}

Status to_f32(const Tensor& source, int64_t first, int64_t count, float* out) {
  using namespace numerics;
  const auto widen = [](auto v) { return static_cast<float>(v); };
  switch (source.dtype) {
    case DType::kF64:
      convert_run<double>(source, first, count, out, widen);
      return {};
    case DType::kF32:
      convert_run<float>(source, first, count, out, widen);
      return {};
    case DType::kF16:
      convert_run<uint16_t>(source, first, count, out, f16_to_f32);
      return {};
    case DType::kBF16:
      convert_run<uint16_t>(source, first, count, out, bf16_to_f32);
      return {};
    case DType::kF8E4M3:
      convert_run<uint8_t>(source, first, count, out, E4M3::decode);
      return {};
    case DType::kF8E4M3Fnuz:
      convert_run<uint8_t>(source, first, count, out, E4M3Fnuz::decode);
      return {};
    case DType::kF8E5M2:
      convert_run<uint8_t>(source, first, count, out, E5M2::decode);
      return {};
    case DType::kF8E8M0:
      convert_run<uint8_t>(source, first, count, out, e8m0_to_f32);
      return {};
    case DType::kI64:
      convert_run<int64_t>(source, first, count, out, widen);
      return {};
    case DType::kU64:
      convert_run<uint64_t>(source, first, count, out, widen);
      return {};
    case DType::kI32:
      convert_run<int32_t>(source, first, count, out, widen);
      return {};
    case DType::kU32:
      convert_run<uint32_t>(source, first, count, out, widen);
      return {};
    case DType::kI16:
      convert_run<int16_t>(source, first, count, out, widen);
      return {};
    case DType::kU16:
      convert_run<uint16_t>(source, first, count, out, widen);
      return {};
    case DType::kI8:
      convert_run<int8_t>(source, first, count, out, widen);
      return {};
    case DType::kU8:
    case DType::kBool:
      convert_run<uint8_t>(source, first, count, out, widen);
      return {};
    case DType::kF8E5M2Fnuz:
    case DType::kC64:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kF4:
      break;
  }
  return unsupported("dtype has no f32 form", {.found = std::string(dtype_name(source.dtype))});
}

Result<std::vector<float>> to_f32(const Tensor& source) {
  std::vector<float> out(static_cast<size_t>(source.count()));
  TARE_TRY(to_f32(source, 0, source.count(), out.data()));
  return out;
}

}  // namespace tare::tensor
