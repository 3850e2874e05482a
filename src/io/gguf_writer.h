#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/gguf.h"
#include "io/output_file.h"
#include "io/write_cursor.h"

namespace tare::io {

/// Metadata of a GGUF file to be written, in order. Nothing is checked before GgufWriter::create.
class GgufMetadata {
 public:
  void add_u32(std::string_view key, uint32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_strings(std::string_view key, std::span<const std::string> values);
  void add_i32s(std::string_view key, std::span<const int32_t> values);
  void add_u32s(std::string_view key, std::span<const uint32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);
  /// A value as read from another file, of any type, byte for byte.
  void add(std::string_view key, const GgufValue& value);

  size_t size() const { return keys_.size(); }
  const std::vector<std::string>& keys() const { return keys_; }
  const std::string& encoded() const { return encoded_; }

 private:
  void begin(std::string_view key, GgufType type);
  template <class T>
  void add_array(std::string_view key, GgufType element, std::span<const T> values);

  std::vector<std::string> keys_;
  std::string encoded_;
};

struct GgufTensorDeclaration {
  std::string name;
  const GgmlType* type = nullptr;
  tensor::Shape shape;  // row-major; reversed in the file
};

/// Writes a version 3 file as a stream: metadata and all tensors first, then their bytes in that order. The file
/// appears when it is finished. One thread at a time.
class GgufWriter {
 public:
  /// Alignment is general.alignment of the metadata, else 32. The header is read back by the reader's own rules, so
  /// whatever parse_gguf refuses is refused here. Errors: kInvalidInput, kIo.
  static Result<GgufWriter> create(const std::string& path, const GgufMetadata& metadata,
                                   const std::vector<GgufTensorDeclaration>& tensors);

  /// The next bytes of tensor `name`, which must be the one due. Errors: kInternal, kIo.
  Status append(std::string_view name, std::span<const std::byte> bytes);

  /// Errors: kInternal (a tensor is not complete), kIo.
  Result<WrittenFile> finish();

 private:
  GgufWriter(OutputFile file, std::vector<PlannedTensor> plan, uint64_t end)
      : file_(std::move(file)), cursor_(std::move(plan)), end_(end) {}

  Status pad_to(uint64_t offset);

  OutputFile file_;
  WriteCursor cursor_;
  uint64_t end_;  // of the last padding
};

}  // namespace tare::io
