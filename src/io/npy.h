#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "io/output_file.h"

namespace tare::io {

/// Streams a [rows, columns] float32 array into a .npy file (format version 1.0, row-major, little-endian). The file
/// appears when it is finished.
class NpyWriter {
 public:
  /// rows, columns >= 0. Errors: kIo.
  static Result<NpyWriter> create(const std::string& path, int64_t rows, int64_t columns);

  /// The next values, in row-major order, in pieces of any length. Errors: kInternal (more than declared), kIo.
  Status append(std::span<const float> values);

  /// Errors: kInternal (fewer than declared), kIo.
  Result<WrittenFile> finish();

 private:
  NpyWriter(OutputFile file, uint64_t left) : file_(std::move(file)), left_(left) {}

  OutputFile file_;
  uint64_t left_;  // values still to come
};

}  // namespace tare::io
