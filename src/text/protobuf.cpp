#include "text/protobuf.h"

#include <fmt/format.h>

#include <bit>

namespace tare::text {

float ProtobufField::as_float() const {
  return std::bit_cast<float>(static_cast<uint32_t>(number));
}

Error ProtobufReader::malformed(std::string_view what) const {
  return invalid_input("malformed protocol buffer",
                       {.where = fmt::format("{}: byte {}", where_, size_ - rest_.size()), .found = std::string(what)});
}

Result<uint64_t> ProtobufReader::varint() {
  uint64_t out = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (rest_.empty()) return malformed("a number that is cut off");
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) return malformed("a number of more than 64 bits");
    out |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return out;
  }
  return malformed("a number of more than 10 bytes");
}

Result<std::optional<ProtobufField>> ProtobufReader::next() {
  if (rest_.empty()) return std::optional<ProtobufField>();
  TARE_ASSIGN(const uint64_t key, varint());
  ProtobufField field;
  if (key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) return malformed("a field number out of range");
  field.tag = static_cast<uint32_t>(key >> 3);
  const auto fixed = [&](size_t bytes) -> Status {
    if (rest_.size() < bytes) return malformed("a value that is cut off");
    for (size_t i = 0; i < bytes; ++i)
      field.number |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(bytes);
    return {};
  };
  switch (key & 7) {
    case 0: {
      field.wire = ProtobufField::Wire::kVarint;
      TARE_ASSIGN(field.number, varint());
      break;
    }
    case 1:
      field.wire = ProtobufField::Wire::kFixed64;
      TARE_TRY(fixed(8));
      break;
    case 2: {
      field.wire = ProtobufField::Wire::kBytes;
      TARE_ASSIGN(const uint64_t bytes, varint());
      if (bytes > rest_.size()) return malformed("a field longer than the message");
      field.bytes = rest_.substr(0, static_cast<size_t>(bytes));
      rest_.remove_prefix(static_cast<size_t>(bytes));
      break;
    }
    case 5:
      field.wire = ProtobufField::Wire::kFixed32;
      TARE_TRY(fixed(4));
      break;
    default:
      return malformed(fmt::format("wire type {}", key & 7));
  }
  return std::optional<ProtobufField>(field);
}

}  // namespace tare::text
