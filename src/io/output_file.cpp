#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace tare::io {

namespace {

constexpr size_t kReadBack = size_t{1} << 20;

Error from_errno(std::string what, const std::string& path) {
  return io_error(std::move(what), {.where = path, .found = std::strerror(errno)});
}

}  // namespace

OutputFile::OutputFile(int fd, std::string path, std::string temporary)
    : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)), hash_(std::make_unique<Sha256>()) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      hash_(std::move(other.hash_)),
      hashed_(other.hashed_),
      size_(other.size_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  if (this == &other) return *this;
  discard();
  fd_ = std::exchange(other.fd_, -1);
  path_ = std::move(other.path_);
  temporary_ = std::exchange(other.temporary_, {});
  hash_ = std::move(other.hash_);
  hashed_ = other.hashed_;
  size_ = other.size_;
  return *this;
}

OutputFile::~OutputFile() {
  discard();
}

void OutputFile::discard() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) ::unlink(std::exchange(temporary_, {}).c_str());
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  std::string temporary = fmt::format("{}.partial-{}", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return from_errno("cannot create file", temporary);
  return OutputFile(fd, path, std::move(temporary));
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  return write_at(size_, bytes);
}

Status OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (fd_ < 0) return internal_error("write to a finished file", {.where = path_});
  uint64_t position = offset;
  for (auto rest = bytes; !rest.empty();) {
    const ssize_t put = ::pwrite(fd_, rest.data(), rest.size(), static_cast<off_t>(position));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return from_errno("cannot write file", temporary_);
    rest = rest.subspan(static_cast<size_t>(put));
    position += static_cast<uint64_t>(put);
  }
  if (offset == hashed_) {
    hash_->update(bytes);
    hashed_ = position;
  }
  size_ = std::max(size_, position);
  return {};
}

Result<WrittenFile> OutputFile::finish() {
  if (fd_ < 0) return internal_error("file finished twice", {.where = path_});
  std::vector<std::byte> chunk(hashed_ < size_ ? kReadBack : 0);
  while (hashed_ < size_) {
    const ssize_t got = ::pread(fd_, chunk.data(), chunk.size(), static_cast<off_t>(hashed_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return from_errno("cannot read back", temporary_);
    hash_->update(std::span(chunk).first(static_cast<size_t>(got)));
    hashed_ += static_cast<uint64_t>(got);
  }
  if (::fsync(fd_) != 0) return from_errno("cannot sync", temporary_);
  if (::close(std::exchange(fd_, -1)) != 0) return from_errno("cannot close", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return from_errno("cannot rename into place", path_);
  temporary_.clear();
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return from_errno("cannot open folder for sync", parent);
  const int synced = ::fsync(folder);
  ::close(folder);
  if (synced != 0) return from_errno("cannot sync folder", parent);
  return WrittenFile{path_, size_, hash_->hex()};
}

}  // namespace tare::io
