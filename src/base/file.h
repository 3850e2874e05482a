#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tare {

/// The whole file as bytes. Errors: kIo (cannot open or read), kInvalidInput (a folder, larger than the limit),
/// kInterrupted.
Result<std::string> read_text_file(const std::string& path, size_t max_bytes = size_t{1} << 30);

/// Writes a file so that a crash leaves either the old content or the new: temporary name, fsync, rename, fsync of the
/// folder.
Status write_file_atomically(const std::string& path, std::string_view content);

/// A folder that appears under its final name only when everything in it is on disk.
/// Created as `<final>.partial-<pid>`; `commit` syncs and renames; the destructor removes what was not committed.
class AtomicDirectory {
 public:
  /// Errors: the final path exists and overwrite is false; the parent is missing or not writable.
  static Result<AtomicDirectory> create(const std::string& final_path, bool overwrite);
  AtomicDirectory(AtomicDirectory&& other) noexcept;
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  ~AtomicDirectory();

  /// Where to write until commit.
  const std::string& path() const { return temporary_; }

  /// Syncs every file and the folder, then renames. With overwrite the old folder is moved aside first and removed
  /// last. final_path may differ from the one given to create (a rejected result keeps another name).
  Status commit();
  Status commit_as(const std::string& final_path);

 private:
  AtomicDirectory(std::string temporary, std::string final_path, bool overwrite);

  std::string temporary_;
  std::string final_;
  bool overwrite_ = false;
};

}  // namespace tare
