#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"

namespace tare::io {

/// What was written, for manifests.
struct WrittenFile {
  std::string path;
  uint64_t bytes = 0;
  std::string sha256;  // lower-case hexadecimal
};

/// A file that appears under its name only when it is whole and on disk: written as `<path>.partial-<pid>`, then synced
/// and renamed by `finish`. The destructor removes what was not finished. One thread at a time.
class OutputFile {
 public:
  /// Errors: kIo (the folder is missing or not writable).
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  /// Appends. Errors: kIo (a full disk, for one).
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

  /// Writes at a place that nothing was written to before, in any order. Bytes that arrive in file order are hashed on
  /// the way; otherwise `finish` reads the file once more.
  Status write_at(uint64_t offset, std::span<const std::byte> bytes);

  /// End of what has been appended or placed so far.
  uint64_t size() const { return size_; }

  Result<WrittenFile> finish();

 private:
  OutputFile(int fd, std::string path, std::string temporary);
  void discard();

  int fd_ = -1;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<Sha256> hash_;  // of the first `hashed_` bytes
  uint64_t hashed_ = 0;
  uint64_t size_ = 0;
};

}  // namespace tare::io
