#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace tare::text {

/// One field of a protocol buffer message: varint and fixed values in `number`, length-delimited ones in `bytes`.
struct ProtobufField {
  uint32_t tag = 0;
  enum class Wire { kVarint, kFixed64, kBytes, kFixed32 } wire = Wire::kVarint;
  uint64_t number = 0;
  std::string_view bytes;

  float as_float() const;  // of a fixed32
  bool as_bool() const { return number != 0; }
};

/// Reads the fields of a message one after the other. No schema, no copies: `bytes` point into the message.
class ProtobufReader {
 public:
  ProtobufReader(std::string_view message, std::string_view where)
      : rest_(message), size_(message.size()), where_(where) {}

  /// The next field, or nothing at the end. Errors: a field that is cut off, a varint longer than 10 bytes, groups, tag
  /// 0.
  Result<std::optional<ProtobufField>> next();

 private:
  Result<uint64_t> varint();
  Error malformed(std::string_view what) const;

  std::string_view rest_;
  size_t size_;
  std::string_view where_;
};

}  // namespace tare::text
