#include "io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "io/gguf_keys.h"
#include "io/mapped_file.h"
#include "io/names.h"

namespace tare::io {

namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr int kMaxArrayDepth = 4;  // arrays of arrays exist in the specification, not in files
constexpr uint64_t kMaxNestedArrays = 65536;
constexpr uint64_t kMinPairBytes = 13;    // key length, type, one byte of value
constexpr uint64_t kMinTensorBytes = 24;  // name length, rank, type, offset

struct TypeRow {
  GgufType type;
  std::string_view name;
  uint64_t bytes;  // of one number; 0 for strings and arrays
};
constexpr TypeRow kTypeRows[] = {
    {GgufType::kU8, "U8", 1},       {GgufType::kI8, "I8", 1},     {GgufType::kU16, "U16", 2},
    {GgufType::kI16, "I16", 2},     {GgufType::kU32, "U32", 4},   {GgufType::kI32, "I32", 4},
    {GgufType::kF32, "F32", 4},     {GgufType::kBool, "BOOL", 1}, {GgufType::kString, "STRING", 0},
    {GgufType::kArray, "ARRAY", 0}, {GgufType::kU64, "U64", 8},   {GgufType::kI64, "I64", 8},
    {GgufType::kF64, "F64", 8},
};
const TypeRow* find_row(uint32_t type) {
  for (const TypeRow& row : kTypeRows) {
    if (static_cast<uint32_t>(row.type) == type) return &row;
  }
  return nullptr;
}

// A cursor over the file that never reads past its end. `what` in its errors is the field being read.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }
  std::string place() const { return fmt::format("{}, byte {}", where_, position_); }

  Error refuse(std::string what, std::string expected, std::string found) const {
    return invalid_input(std::move(what),
                         {.where = place(), .expected = std::move(expected), .found = std::move(found)});
  }

  Result<std::span<const std::byte>> take(uint64_t count, std::string_view what) {
    if (count > left()) {
      return invalid_input(fmt::format("GGUF file ends inside {}", what),
                           {.where = place(),
                            .expected = fmt::format("{} bytes", count),
                            .found = fmt::format("{}", left()),
                            .hint = "the file is cut or its lengths are damaged"});
    }
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <class T>
  Result<T> number(std::string_view what) {
    TARE_ASSIGN(const auto raw, take(sizeof(T), what));
    T value;
    std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }

  Result<std::string_view> string(std::string_view what) {
    TARE_ASSIGN(const uint64_t length, number<uint64_t>(what));
    TARE_ASSIGN(const auto raw, take(length, what));
    return std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view where_;
  uint64_t position_ = 0;
};

Result<const TypeRow*> read_type(Reader& in, std::string_view key) {
  TARE_ASSIGN(const uint32_t id, in.number<uint32_t>("the type of a metadata value"));
  if (const TypeRow* row = find_row(id)) return row;
  return in.refuse(fmt::format("unknown type of metadata value {}", printable(key)), "0 to 12", fmt::format("{}", id));
}

Status read_numbers(Reader& in, const TypeRow& row, uint64_t count, std::string_view key, GgufValue& out) {
  const auto bytes = checked_mul(count, row.bytes);
  if (!bytes)
    return in.refuse(fmt::format("array {} too long", printable(key)), "a length that fits the file",
                     fmt::format("{}", count));
  TARE_ASSIGN(out.raw, in.take(*bytes, fmt::format("metadata value {}", printable(key))));
  if (row.type == GgufType::kBool) {
    for (const std::byte b : out.raw) {
      if (b > std::byte{1}) {
        return in.refuse(fmt::format("bad truth value in {}", printable(key)), "0 or 1",
                         fmt::format("{}", static_cast<int>(b)));
      }
    }
  }
  return {};
}

Result<GgufValue> read_value(Reader& in, const TypeRow& row, std::string_view key, int depth);

Status read_array(Reader& in, std::string_view key, int depth, GgufValue& out) {
  if (depth == kMaxArrayDepth) {
    return in.refuse(fmt::format("arrays nested too deeply in {}", printable(key)),
                     fmt::format("at most {} levels", kMaxArrayDepth), "more");
  }
  TARE_ASSIGN(const TypeRow* element, read_type(in, key));
  TARE_ASSIGN(out.count, in.number<uint64_t>("the length of an array"));
  out.element = element->type;
  if (element->bytes > 0) return read_numbers(in, *element, out.count, key, out);

  if (element->type == GgufType::kArray && out.count > kMaxNestedArrays) {
    return in.refuse(fmt::format("too many arrays in {}", printable(key)), fmt::format("at most {}", kMaxNestedArrays),
                     fmt::format("{}", out.count));
  }
  const uint64_t least = element->type == GgufType::kString ? 8 : 12;  // bytes of an empty element
  if (out.count > in.left() / least) {
    return in.refuse(fmt::format("array {} longer than the file", printable(key)),
                     fmt::format("at most {} elements", in.left() / least), fmt::format("{}", out.count));
  }
  if (element->type == GgufType::kString) {
    out.strings.reserve(out.count);
    for (uint64_t i = 0; i < out.count; ++i) {
      TARE_ASSIGN(const std::string_view text, in.string("a string of an array"));
      out.strings.push_back(text);
    }
    return {};
  }
  for (uint64_t i = 0; i < out.count; ++i) {
    TARE_ASSIGN(GgufValue inner, read_value(in, *element, key, depth + 1));
    out.nested.push_back(std::move(inner));
  }
  return {};
}

Result<GgufValue> read_value(Reader& in, const TypeRow& row, std::string_view key, int depth) {
  GgufValue out;
  out.type = row.type;
  if (row.type == GgufType::kString) {
    TARE_ASSIGN(const std::string_view text, in.string(fmt::format("metadata value {}", printable(key))));
    out.strings.push_back(text);
  } else if (row.type == GgufType::kArray) {
    TARE_TRY(read_array(in, key, depth, out));
  } else {
    TARE_TRY(read_numbers(in, row, 1, key, out));
  }
  return out;
}

Status read_metadata(Reader& in, uint64_t count, std::string_view where, GgufFile& out) {
  if (count > in.left() / kMinPairBytes) {
    return in.refuse("metadata longer than the file", fmt::format("at most {} pairs", in.left() / kMinPairBytes),
                     fmt::format("{}", count));
  }
  out.metadata.reserve(std::min<uint64_t>(count, 4096));
  for (uint64_t i = 0; i < count; ++i) {
    TARE_ASSIGN(const std::string_view key, in.string("a metadata key"));
    TARE_TRY(check_name(key, "metadata key", where));
    TARE_ASSIGN(const TypeRow* row, read_type(in, key));
    TARE_ASSIGN(GgufValue value, read_value(in, *row, key, 0));
    TARE_TRY(check_known_key(key, value, where));
    if (!out.key_index.emplace(std::string(key), out.metadata.size()).second) {
      return in.refuse("metadata key twice", "unique keys", printable(key));
    }
    out.metadata.push_back({std::string(key), std::move(value)});
  }
  return {};
}

Status read_alignment(GgufFile& out) {
  out.alignment = kDefaultAlignment;
  const GgufValue* value = out.find("general.alignment");
  if (!value) return {};
  TARE_ASSIGN(out.alignment, out.get_uint("general.alignment"));
  if (out.alignment == 0 || (out.alignment & (out.alignment - 1)) != 0 || out.alignment > kMaxAlignment) {
    return invalid_input(
        "bad general.alignment",
        {.where = out.path, .expected = "a power of two up to 2^20", .found = fmt::format("{}", out.alignment)});
  }
  return {};
}

// One tensor info; its offset is still relative to the data, and `data` is not set.
Result<GgufTensor> read_tensor_info(Reader& in, std::string_view where) {
  GgufTensor out;
  TARE_ASSIGN(const std::string_view name, in.string("a tensor name"));
  TARE_TRY(check_name(name, "tensor name", where));
  out.name = std::string(name);
  TARE_ASSIGN(const uint32_t rank, in.number<uint32_t>("a tensor's rank"));
  if (rank > kMaxGgufRank) {
    return in.refuse(fmt::format("bad rank of tensor {}", printable(name)), "at most 4", fmt::format("{}", rank));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    TARE_ASSIGN(const uint64_t extent, in.number<uint64_t>("a tensor's shape"));
    if (extent > static_cast<uint64_t>(INT64_MAX)) {
      return in.refuse(fmt::format("bad shape of tensor {}", printable(name)), "extents below 2^63",
                       fmt::format("{}", extent));
    }
    out.shape.insert(out.shape.begin(), static_cast<int64_t>(extent));
  }
  TARE_ASSIGN(const uint32_t type, in.number<uint32_t>("a tensor's type"));
  auto row = ggml_type(type);
  if (!row.ok()) {
    Error error = std::move(row).error();
    error.where = fmt::format("{}, tensor {}", where, printable(name));
    return error;
  }
  out.type = *row;
  TARE_ASSIGN(out.offset, in.number<uint64_t>("a tensor's offset"));
  return out;
}

Status check_zeros(std::span<const std::byte> padding, uint64_t offset, std::string_view where) {
  for (const std::byte b : padding) {
    if (b != std::byte{0}) {
      return invalid_input("padding is not zero", {.where = fmt::format("{}, near byte {}", where, offset)});
    }
  }
  return {};
}

// Holds offsets and sizes against each other and the file, and cuts out the bytes.
Status place_tensors(std::span<const std::byte> bytes, std::string_view where, GgufFile& out) {
  uint64_t position = 0;  // relative to the data
  const uint64_t data_bytes = bytes.size() - out.data_offset;
  for (GgufTensor& t : out.tensors) {
    const std::string place = fmt::format("{}, tensor {}", where, printable(t.name));
    auto size = ggml_tensor_bytes(*t.type, t.shape);
    if (!size.ok()) {
      Error error = std::move(size).error();
      error.where = place;
      return error;
    }
    if (t.offset != position) {
      return invalid_input(
          "tensor is not where the one before it ends",
          {.where = place, .expected = fmt::format("offset {}", position), .found = fmt::format("{}", t.offset)});
    }
    if (*size > data_bytes - position) {
      return invalid_input("tensor outside the file", {.where = place,
                                                       .expected = fmt::format("{} bytes of {}", *size, t.type->name),
                                                       .found = fmt::format("{} left", data_bytes - position),
                                                       .hint = "the file is cut: copy or download it again"});
    }
    t.offset = out.data_offset + position;
    t.data = out.bytes.slice(t.offset, *size);
    position += *size;
    const uint64_t over = position % out.alignment;
    const uint64_t padding = over == 0 ? 0 : out.alignment - over;
    const bool last = &t == &out.tensors.back();
    if (padding > data_bytes - position) {
      // Only the padding behind the last tensor may be absent, and then all of it.
      if (last && data_bytes == position) break;
      return invalid_input("file ends inside padding", {.where = place,
                                                        .expected = fmt::format("{} bytes", padding),
                                                        .found = fmt::format("{}", data_bytes - position)});
    }
    position += padding;
  }
  if (position != data_bytes) {
    return invalid_input("bytes after the last tensor",
                         {.where = std::string(where),
                          .expected = fmt::format("{} bytes", out.data_offset + position),
                          .found = fmt::format("{}", bytes.size())});
  }
  // After the places are known to be right, so that a wrong place is told as one. Touches one page a tensor at most.
  for (size_t i = 0; i < out.tensors.size(); ++i) {
    const uint64_t end = out.tensors[i].offset + out.tensors[i].data.size();
    const uint64_t next = i + 1 < out.tensors.size() ? out.tensors[i + 1].offset : bytes.size();
    TARE_TRY(check_zeros(bytes.subspan(end, next - end), end, where));
  }
  return {};
}

Status read_preamble(Reader& in, std::string_view where, GgufFile& out) {
  TARE_ASSIGN(const auto magic, in.take(4, "its magic"));
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
    return invalid_input("not a GGUF file",
                         {.where = std::string(where),
                          .expected = "'GGUF'",
                          .found = printable({reinterpret_cast<const char*>(magic.data()), magic.size()})});
  }
  TARE_ASSIGN(out.version, in.number<uint32_t>("its version"));
  if (out.version != 0 && (out.version & 0xFFFF) == 0) {
    return unsupported("big-endian GGUF file", {.where = std::string(where),
                                                .expected = "little-endian",
                                                .found = fmt::format("version 0x{:08x}", out.version),
                                                .hint = "convert it with gguf_convert_endian.py"});
  }
  if (out.version != 2 && out.version != 3) {
    return unsupported(fmt::format("GGUF version {}", out.version),
                       {.where = std::string(where), .expected = "2 or 3", .hint = "convert the model again"});
  }
  return {};
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  const TypeRow* row = find_row(static_cast<uint32_t>(type));
  return row ? row->name : "?";
}

Result<GgufFile> parse_gguf(Buffer file, std::string_view where) {
  Reader in(file.bytes(), where);
  GgufFile out;
  out.path = std::string(where);
  out.bytes = file;
  TARE_TRY(read_preamble(in, where, out));
  TARE_ASSIGN(const uint64_t tensor_count, in.number<uint64_t>("its tensor count"));
  TARE_ASSIGN(const uint64_t pair_count, in.number<uint64_t>("its metadata count"));
  TARE_TRY(read_metadata(in, pair_count, where, out));
  TARE_TRY(read_alignment(out));
  if (tensor_count > in.left() / kMinTensorBytes) {
    return in.refuse("tensor table longer than the file",
                     fmt::format("at most {} tensors", in.left() / kMinTensorBytes), fmt::format("{}", tensor_count));
  }
  for (uint64_t i = 0; i < tensor_count; ++i) {
    TARE_ASSIGN(GgufTensor t, read_tensor_info(in, where));
    if (!out.tensor_index.emplace(t.name, out.tensors.size()).second) {
      return in.refuse("tensor name twice", "unique names", printable(t.name));
    }
    out.tensors.push_back(std::move(t));
  }
  const uint64_t over = in.position() % out.alignment;
  uint64_t padding = over == 0 ? 0 : out.alignment - over;
  if (out.tensors.empty() && in.left() == 0) padding = 0;  // a file of metadata alone may end here
  TARE_ASSIGN(const auto zeros, in.take(padding, "the padding before its tensors"));
  TARE_TRY(check_zeros(zeros, in.position() - padding, where));
  out.data_offset = in.position();
  TARE_TRY(place_tensors(file.bytes(), where, out));
  return out;
}

Result<GgufFile> open_gguf(const std::string& path) {
  TARE_ASSIGN(Buffer file, map_file(path));
  return parse_gguf(std::move(file), path);
}

}  // namespace tare::io
