#include "io/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "io/names.h"

namespace tare::io {

namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);  // every supported machine is little-endian
}
void put_string(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}
void put_raw(std::string& out, std::span<const std::byte> raw) {
  out.append(reinterpret_cast<const char*>(raw.data()), raw.size());
}

void put_value(std::string& out, const GgufValue& value) {
  if (value.type == GgufType::kArray) {
    put(out, static_cast<uint32_t>(value.element));
    put(out, value.count);
  }
  for (const std::string_view text : value.strings) put_string(out, text);
  for (const GgufValue& inner : value.nested) put_value(out, inner);
  put_raw(out, value.raw);
}

uint64_t padded(uint64_t size, uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

}  // namespace

void GgufMetadata::begin(std::string_view key, GgufType type) {
  keys_.emplace_back(key);
  put_string(encoded_, key);
  put(encoded_, static_cast<uint32_t>(type));
}
void GgufMetadata::add_u32(std::string_view key, uint32_t value) {
  begin(key, GgufType::kU32);
  put(encoded_, value);
}
void GgufMetadata::add_f32(std::string_view key, float value) {
  begin(key, GgufType::kF32);
  put(encoded_, value);
}
void GgufMetadata::add_bool(std::string_view key, bool value) {
  begin(key, GgufType::kBool);
  put<uint8_t>(encoded_, value ? 1 : 0);
}
void GgufMetadata::add_string(std::string_view key, std::string_view value) {
  begin(key, GgufType::kString);
  put_string(encoded_, value);
}
void GgufMetadata::add_strings(std::string_view key, std::span<const std::string> values) {
  begin(key, GgufType::kArray);
  put(encoded_, static_cast<uint32_t>(GgufType::kString));
  put<uint64_t>(encoded_, values.size());
  for (const std::string& value : values) put_string(encoded_, value);
}
template <class T>
void GgufMetadata::add_array(std::string_view key, GgufType element, std::span<const T> values) {
  begin(key, GgufType::kArray);
  put(encoded_, static_cast<uint32_t>(element));
  put<uint64_t>(encoded_, values.size());
  put_raw(encoded_, std::as_bytes(values));
}
void GgufMetadata::add_i32s(std::string_view key, std::span<const int32_t> values) {
  add_array(key, GgufType::kI32, values);
}
void GgufMetadata::add_u32s(std::string_view key, std::span<const uint32_t> values) {
  add_array(key, GgufType::kU32, values);
}
void GgufMetadata::add_f32s(std::string_view key, std::span<const float> values) {
  add_array(key, GgufType::kF32, values);
}
void GgufMetadata::add(std::string_view key, const GgufValue& value) {
  begin(key, value.type);
  put_value(encoded_, value);
}

Result<GgufWriter> GgufWriter::create(const std::string& path, const GgufMetadata& metadata,
                                      const std::vector<GgufTensorDeclaration>& tensors) {
  const auto preamble = [&](uint64_t tensor_count) {
    std::string out = "GGUF";
    put<uint32_t>(out, 3);
    put<uint64_t>(out, tensor_count);
    put<uint64_t>(out, metadata.size());
    return out + metadata.encoded();
  };
  // Metadata alone is a legal file: what the reader says of it holds for the whole.
  TARE_ASSIGN(const GgufFile head, parse_gguf(Buffer::own(preamble(0)), path));

  std::string header = preamble(tensors.size());
  std::vector<PlannedTensor> plan;
  std::set<std::string_view> names;
  uint64_t position = 0;
  for (const GgufTensorDeclaration& t : tensors) {
    const std::string place = fmt::format("{}, tensor {}", path, printable(t.name));
    TARE_TRY(check_name(t.name, "tensor name", path));
    if (!names.insert(t.name).second) return invalid_input("tensor name twice", {.where = place});
    if (!t.type) return internal_error("tensor without a type", {.where = place});
    if (t.shape.size() > kMaxGgufRank) {
      return invalid_input("too many axes for GGUF",
                           {.where = place, .expected = "at most 4", .found = tensor::shape_text(t.shape)});
    }
    auto bytes = ggml_tensor_bytes(*t.type, t.shape);
    if (!bytes.ok()) {
      Error error = std::move(bytes).error();
      error.where = place;
      return error;
    }
    put_string(header, t.name);
    put<uint32_t>(header, static_cast<uint32_t>(t.shape.size()));
    for (auto extent = t.shape.rbegin(); extent != t.shape.rend(); ++extent)
      put<uint64_t>(header, static_cast<uint64_t>(*extent));
    put<uint32_t>(header, t.type->id);
    put<uint64_t>(header, position);
    plan.push_back({.name = t.name, .file = 0, .offset = position, .bytes = *bytes});
    const auto end = checked_add(position, *bytes);
    if (!end || *end > static_cast<uint64_t>(INT64_MAX) / 2) return invalid_input("output too large", {.where = path});
    position = padded(*end, head.alignment);
  }
  header.resize(padded(header.size(), head.alignment), '\0');
  for (PlannedTensor& t : plan) t.offset += header.size();
  TARE_ASSIGN(OutputFile file, OutputFile::create(path));
  TARE_TRY(file.write(header));
  return GgufWriter(std::move(file), std::move(plan), header.size() + position);
}

Status GgufWriter::pad_to(uint64_t offset) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (file_.size() < offset) {
    const uint64_t step = std::min<uint64_t>(offset - file_.size(), kZeros.size());
    TARE_TRY(file_.write(std::span(kZeros).first(step)));
  }
  return {};
}

Status GgufWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  TARE_ASSIGN(const WriteCursor::Place place, cursor_.next(name, bytes.size()));
  TARE_TRY(pad_to(place.offset));
  return file_.write(bytes);
}

Result<WrittenFile> GgufWriter::finish() {
  TARE_TRY(cursor_.complete());
  TARE_TRY(pad_to(end_));
  return file_.finish();
}

}  // namespace tare::io
