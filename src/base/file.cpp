#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/interrupt.h"

namespace tare {

namespace fs = std::filesystem;

namespace {

Error from_errno(std::string what, const std::string& path) {
  return io_error(std::move(what), {.where = path, .found = std::strerror(errno)});
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Status sync_path(const std::string& path, bool directory) {
  const Descriptor fd(::open(path.c_str(), directory ? O_RDONLY | O_DIRECTORY : O_RDONLY));
  if (fd.get() < 0) return from_errno("cannot open for sync", path);
  if (::fsync(fd.get()) != 0) return from_errno("cannot sync", path);
  return {};
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY));
  if (fd.get() < 0) return from_errno("cannot open file", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return from_errno("cannot stat file", path);
  if (S_ISDIR(info.st_mode))
    return invalid_input("not a file", {.where = path, .expected = "a regular file", .found = "a folder"});
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return invalid_input("file too large", {.where = path,
                                            .expected = fmt::format("at most {} bytes", max_bytes),
                                            .found = fmt::format("{} bytes", info.st_size)});
  }
  std::string content;
  content.reserve(static_cast<size_t>(info.st_size));
  char chunk[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) {
      TARE_TRY(check_interrupt("reading " + path));  // a pipe may never end
      continue;
    }
    if (got < 0) return from_errno("cannot read file", path);
    if (got == 0) break;
    content.append(chunk, static_cast<size_t>(got));
    if (content.size() > max_bytes) return invalid_input("file too large", {.where = path});
  }
  return content;
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  const std::string temporary = fmt::format("{}.partial-{}", path, ::getpid());
  {
    const Descriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
    if (fd.get() < 0) return from_errno("cannot create file", temporary);
    while (!content.empty()) {
      const ssize_t put = ::write(fd.get(), content.data(), content.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        Error error = from_errno("cannot write file", temporary);
        ::unlink(temporary.c_str());
        return error;
      }
      content.remove_prefix(static_cast<size_t>(put));
    }
    if (::fsync(fd.get()) != 0) return from_errno("cannot sync", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    Error error = from_errno("cannot rename into place", path);
    ::unlink(temporary.c_str());
    return error;
  }
  return sync_path(parent_of(path), true);
}

AtomicDirectory::AtomicDirectory(std::string temporary, std::string final_path, bool overwrite)
    : temporary_(std::move(temporary)), final_(std::move(final_path)), overwrite_(overwrite) {}

AtomicDirectory::AtomicDirectory(AtomicDirectory&& other) noexcept
    : temporary_(std::exchange(other.temporary_, {})), final_(std::move(other.final_)), overwrite_(other.overwrite_) {}

AtomicDirectory::~AtomicDirectory() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

Result<AtomicDirectory> AtomicDirectory::create(const std::string& final_path, bool overwrite) {
  const std::string final_clean = without_trailing_slash(final_path);
  if (final_clean.empty()) return invalid_input("output folder has no name");
  std::error_code ec;
  if (fs::exists(final_clean, ec) && !overwrite) {
    return invalid_input("output exists", {.where = final_clean,
                                           .expected = "a path that does not exist yet",
                                           .hint = "choose another --out or pass --overwrite"});
  }
  std::string temporary = fmt::format("{}.partial-{}", final_clean, ::getpid());
  fs::remove_all(temporary, ec);
  if (!fs::create_directory(temporary, ec)) {
    return io_error("cannot create output folder", {.where = temporary, .found = ec.message()});
  }
  return AtomicDirectory(std::move(temporary), final_clean, overwrite);
}

Status AtomicDirectory::commit() {
  return commit_as(final_);
}

Status AtomicDirectory::commit_as(const std::string& final_path) {
  std::error_code ec;
  for (const auto& entry : fs::recursive_directory_iterator(temporary_, ec)) {
    if (entry.is_regular_file()) TARE_TRY(sync_path(entry.path().string(), false));
  }
  TARE_TRY(sync_path(temporary_, true));
  std::string old;
  if (fs::exists(final_path, ec)) {
    if (!overwrite_) return invalid_input("output exists", {.where = final_path, .hint = "pass --overwrite"});
    old = fmt::format("{}.old-{}", final_path, ::getpid());
    fs::rename(final_path, old, ec);
    if (ec) return io_error("cannot move the old output aside", {.where = final_path, .found = ec.message()});
  }
  fs::rename(temporary_, final_path, ec);
  if (ec) {
    std::error_code back;
    if (!old.empty()) fs::rename(old, final_path, back);
    return io_error("cannot rename output into place", {.where = final_path, .found = ec.message()});
  }
  temporary_.clear();
  TARE_TRY(sync_path(parent_of(final_path), true));
  if (!old.empty()) fs::remove_all(old, ec);
  return {};
}

}  // namespace tare
