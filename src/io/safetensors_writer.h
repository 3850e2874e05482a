#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/output_file.h"
#include "io/write_cursor.h"
#include "tensor/tensor.h"

namespace tare::io {

struct TensorDeclaration {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape;
};

struct SafetensorsWriterOptions {
  std::map<std::string, std::string, std::less<>> metadata = {{"format", "pt"}};
  uint64_t max_shard_bytes = 0;  // of tensors in one file; 0: no limit. A longer tensor gets a file of its own.
};

/// Writes safetensors as a stream: all tensors are declared first, then their bytes come in that order, in pieces of
/// any length, and are never held. One thread at a time.
///
/// Layout: the declared order, if that aligns every tensor to its element size; else the widest elements first, since
/// other readers map tensors in place and cannot read unaligned ones. Headers are padded with spaces to 8 bytes.
class SafetensorsWriter {
 public:
  /// One file at `path`. Errors: kInvalidInput (a name that is bad or declared twice, a header over the format's
  /// limit), kIo.
  static Result<SafetensorsWriter> create_file(const std::string& path, const std::vector<TensorDeclaration>& tensors,
                                               const SafetensorsWriterOptions& options = {});

  /// `model.safetensors` in an existing folder, or shards and `model.safetensors.index.json` when the limit asks for
  /// them. Each file is atomic, the set is not: write into an AtomicDirectory.
  static Result<SafetensorsWriter> create_in_folder(const std::string& folder,
                                                    const std::vector<TensorDeclaration>& tensors,
                                                    const SafetensorsWriterOptions& options = {});

  /// Bytes of all files that create_in_folder would lead to, headers and index included. Writes nothing.
  static Result<uint64_t> bytes_in_folder(const std::vector<TensorDeclaration>& tensors,
                                          const SafetensorsWriterOptions& options = {});

  /// The next bytes of tensor `name`, which must be the one due. Empty tensors need no call.
  /// Errors: kInternal (not the declared order or length), kIo.
  Status append(std::string_view name, std::span<const std::byte> bytes);

  /// Files in the order of their names' numbers, the index last. Errors: kInternal (a tensor is not complete), kIo.
  Result<std::vector<WrittenFile>> finish();

 private:
  struct Shard {
    std::string path;
    std::string header;  // with its length
  };
  struct Layout {
    std::vector<Shard> shards;
    std::vector<PlannedTensor> plan;
    std::string index_path;  // empty: none
    std::string index;
  };
  SafetensorsWriter(std::vector<Shard> shards, std::vector<PlannedTensor> plan, std::string index_path,
                    std::string index);
  static Result<Layout> lay_out_files(const std::string& folder, const std::string& single_path,
                                      const std::vector<TensorDeclaration>& tensors,
                                      const SafetensorsWriterOptions& options);
  static Result<SafetensorsWriter> create(const std::string& folder, const std::string& single_path,
                                          const std::vector<TensorDeclaration>& tensors,
                                          const SafetensorsWriterOptions& options);
  Status open_until(size_t shard);

  std::vector<Shard> shards_;
  WriteCursor cursor_;
  std::string index_path_;  // empty: none
  std::string index_;
  std::optional<OutputFile> open_;  // shard number written_.size()
  std::vector<WrittenFile> written_;
};

}  // namespace tare::io
