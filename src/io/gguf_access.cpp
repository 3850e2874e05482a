#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "io/gguf.h"
#include "io/names.h"

namespace tare::io {

namespace {

template <class T>
T load(std::span<const std::byte> raw, uint64_t i) {
  T value;
  std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));
  return value;
}

Error wrong_type(const GgufFile& file, std::string_view key, std::string_view expected, const GgufValue& value) {
  return invalid_input(
      fmt::format("metadata {} has the wrong type", printable(key)),
      {.where = file.path,
       .expected = std::string(expected),
       .found = value.type == GgufType::kArray ? fmt::format("ARRAY of {}", gguf_type_name(value.element))
                                               : std::string(gguf_type_name(value.type))});
}

Result<const GgufValue*> require(const GgufFile& file, std::string_view key, std::string_view expected) {
  if (const GgufValue* value = file.find(key)) return value;
  return invalid_input(fmt::format("metadata {} is missing", printable(key)),
                       {.where = file.path, .expected = std::string(expected)});
}

Result<const GgufValue*> require_array(const GgufFile& file, std::string_view key, std::string_view expected) {
  TARE_ASSIGN(const GgufValue* value, require(file, key, expected));
  if (value->type != GgufType::kArray) return wrong_type(file, key, expected, *value);
  return value;
}

}  // namespace

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = key_index.find(key);
  return found == key_index.end() ? nullptr : &metadata[found->second].value;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index.find(name);
  return found == tensor_index.end() ? nullptr : &tensors[found->second];
}

Result<uint64_t> GgufFile::get_uint(std::string_view key) const {
  constexpr std::string_view kExpected = "an unsigned integer";
  TARE_ASSIGN(const GgufValue* value, require(*this, key, kExpected));
  if (value->type == GgufType::kU8) return uint64_t{load<uint8_t>(value->raw, 0)};
  if (value->type == GgufType::kU16) return uint64_t{load<uint16_t>(value->raw, 0)};
  if (value->type == GgufType::kU32) return uint64_t{load<uint32_t>(value->raw, 0)};
  if (value->type == GgufType::kU64) return load<uint64_t>(value->raw, 0);
  return wrong_type(*this, key, kExpected, *value);
}

Result<int64_t> GgufFile::get_int(std::string_view key) const {
  constexpr std::string_view kExpected = "a signed integer";
  TARE_ASSIGN(const GgufValue* value, require(*this, key, kExpected));
  if (value->type == GgufType::kI8) return int64_t{load<int8_t>(value->raw, 0)};
  if (value->type == GgufType::kI16) return int64_t{load<int16_t>(value->raw, 0)};
  if (value->type == GgufType::kI32) return int64_t{load<int32_t>(value->raw, 0)};
  if (value->type == GgufType::kI64) return load<int64_t>(value->raw, 0);
  return wrong_type(*this, key, kExpected, *value);
}

Result<double> GgufFile::get_float(std::string_view key) const {
  constexpr std::string_view kExpected = "a floating-point number";
  TARE_ASSIGN(const GgufValue* value, require(*this, key, kExpected));
  double number = 0;
  if (value->type == GgufType::kF32) {
    number = load<float>(value->raw, 0);
  } else if (value->type == GgufType::kF64) {
    number = load<double>(value->raw, 0);
  } else {
    return wrong_type(*this, key, kExpected, *value);
  }
  if (number - number != 0) {  // inf or NaN
    return invalid_input(fmt::format("metadata {} is not finite", printable(key)),
                         {.where = path, .found = fmt::format("{}", number)});
  }
  return number;
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  TARE_ASSIGN(const GgufValue* value, require(*this, key, "BOOL"));
  if (value->type != GgufType::kBool) return wrong_type(*this, key, "BOOL", *value);
  return load<uint8_t>(value->raw, 0) != 0;
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  TARE_ASSIGN(const GgufValue* value, require(*this, key, "STRING"));
  if (value->type != GgufType::kString) return wrong_type(*this, key, "STRING", *value);
  return value->strings.front();
}

Result<uint64_t> GgufFile::get_uint_or(std::string_view key, uint64_t fallback) const {
  if (!find(key)) return fallback;
  return get_uint(key);
}
Result<double> GgufFile::get_float_or(std::string_view key, double fallback) const {
  if (!find(key)) return fallback;
  return get_float(key);
}
Result<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  if (!find(key)) return fallback;
  return get_bool(key);
}
Result<std::string> GgufFile::get_string_or(std::string_view key, std::string_view fallback) const {
  if (!find(key)) return std::string(fallback);
  TARE_ASSIGN(const std::string_view text, get_string(key));
  return std::string(text);
}

Result<std::span<const std::string_view>> GgufFile::get_strings(std::string_view key) const {
  TARE_ASSIGN(const GgufValue* value, require_array(*this, key, "ARRAY of STRING"));
  if (value->element != GgufType::kString) return wrong_type(*this, key, "ARRAY of STRING", *value);
  return std::span<const std::string_view>(value->strings);
}

Result<std::vector<int64_t>> GgufFile::get_ints(std::string_view key) const {
  constexpr std::string_view kExpected = "ARRAY of integers";
  TARE_ASSIGN(const GgufValue* value, require_array(*this, key, kExpected));
  std::vector<int64_t> out(value->raw.empty() ? 0 : value->count);
  const auto fill = [&]<class T>(T) {
    for (uint64_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(load<T>(value->raw, i));
  };
  switch (value->element) {
    case GgufType::kU8:
      fill(uint8_t{});
      return out;
    case GgufType::kI8:
      fill(int8_t{});
      return out;
    case GgufType::kU16:
      fill(uint16_t{});
      return out;
    case GgufType::kI16:
      fill(int16_t{});
      return out;
    case GgufType::kU32:
      fill(uint32_t{});
      return out;
    case GgufType::kI32:
      fill(int32_t{});
      return out;
    case GgufType::kI64:
      fill(int64_t{});
      return out;
    case GgufType::kU64:
      fill(uint64_t{});
      if (std::any_of(out.begin(), out.end(), [](int64_t v) { return v < 0; })) {
        return invalid_input(fmt::format("metadata {} has a number that is too large", printable(key)),
                             {.where = path});
      }
      return out;
    default:
      return wrong_type(*this, key, kExpected, *value);
  }
}

Result<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  TARE_ASSIGN(const GgufValue* value, require_array(*this, key, "ARRAY of F32"));
  if (value->element != GgufType::kF32) return wrong_type(*this, key, "ARRAY of F32", *value);
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->raw.data(), value->raw.size());
  return out;
}

Result<std::vector<bool>> GgufFile::get_bools(std::string_view key) const {
  TARE_ASSIGN(const GgufValue* value, require_array(*this, key, "ARRAY of BOOL"));
  if (value->element != GgufType::kBool) return wrong_type(*this, key, "ARRAY of BOOL", *value);
  std::vector<bool> out(value->count);
  for (uint64_t i = 0; i < value->count; ++i) out[i] = value->raw[i] != std::byte{0};
  return out;
}

}  // namespace tare::io
