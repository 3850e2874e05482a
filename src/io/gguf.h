#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "io/ggml_types.h"
#include "tensor/tensor.h"

namespace tare::io {

/// Axes of a tensor at most (GGML_MAX_DIMS).
inline constexpr uint32_t kMaxGgufRank = 4;

/// Types of metadata values, with their numbers in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view gguf_type_name(GgufType type);

/// One metadata value, as it lies in the file. Views into the bytes of the GgufFile it came from (or of any copy).
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;       // arrays only
  uint64_t count = 1;                     // elements of an array
  std::span<const std::byte> raw;         // numbers and bools: count little-endian values, unaligned
  std::vector<std::string_view> strings;  // a string (one) or an array of strings
  std::vector<GgufValue> nested;          // an array of arrays
};

struct GgufKeyValue {
  std::string key;
  GgufValue value;
};

struct GgufTensor {
  std::string name;
  const GgmlType* type = nullptr;
  tensor::Shape shape;  // row-major: ggml's ne reversed, so a Linear is [out, in]
  uint64_t offset = 0;  // of `data` in the file
  Buffer data;          // shares the bytes of the file
};

/// One GGUF file: metadata and tensors in file order.
///
/// Typed members: the value must have one of the types named (a number of another type is not converted: llama.cpp
/// refuses it too). An absent key is an error that names it, except in the `_or` forms.
struct GgufFile {
  std::string path;
  uint32_t version = 0;
  uint64_t alignment = 0;
  uint64_t data_offset = 0;
  std::vector<GgufKeyValue> metadata;
  std::vector<GgufTensor> tensors;
  std::map<std::string, size_t, std::less<>> key_index;     // key -> place in `metadata`
  std::map<std::string, size_t, std::less<>> tensor_index;  // name -> place in `tensors`
  Buffer bytes;                                             // keeps the views alive

  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;

  Result<uint64_t> get_uint(std::string_view key) const;  // U8 U16 U32 U64
  Result<int64_t> get_int(std::string_view key) const;    // I8 I16 I32 I64
  Result<double> get_float(std::string_view key) const;   // F32 F64, finite
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  Result<uint64_t> get_uint_or(std::string_view key, uint64_t fallback) const;
  Result<double> get_float_or(std::string_view key, double fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string> get_string_or(std::string_view key, std::string_view fallback) const;

  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(
      std::string_view key) const;  // any integer element type (U64 above 2^63: error)
  Result<std::vector<float>> get_floats(std::string_view key) const;  // F32 elements, any value
  Result<std::vector<bool>> get_bools(std::string_view key) const;
};

/// |magic|version|tensor count|pair count|pairs|tensor infos|zeros to the alignment|tensors, each padded with zeros|.
/// Reads versions 2 and 3. Strict: counts and lengths are held against the bytes left before anything is allocated;
/// keys and names are unique; each tensor starts at the padded end of the one before (as llama.cpp demands) and is as
/// long as its type and shape say; padding is zero; the file ends with the last tensor or its padding.
/// Nothing is copied but names. `where` names the source in messages.
/// Errors: kInvalidInput; kUnsupported (version 1 or above 3, big-endian, unknown tensor type).
/// Source: docs/gguf.md of ggml and ggml/src/gguf.cpp of llama.cpp.
Result<GgufFile> parse_gguf(Buffer file, std::string_view where);

/// The same for a file on disk, mapped: only header, metadata and padding are read now. Errors: also kIo.
Result<GgufFile> open_gguf(const std::string& path);

}  // namespace tare::io
