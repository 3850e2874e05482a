#include "quantize/token_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "io/output_file.h"
#include "numerics/mini_float.h"

namespace tare::quantize {

namespace {

constexpr int64_t kChunk = 1024;  // tokens

Error failed(const std::string& what, const std::string& where) {
  return io_error(what, {.where = where, .found = std::strerror(errno)});
}

}  // namespace

Result<TokenStore> TokenStore::make(int64_t tokens, int64_t width, const std::string& folder, MemoryBudget* budget,
                                    int64_t memory_left_for_others) {
  TokenStore out;
  out.tokens_ = tokens;
  out.width_ = width;
  const int64_t bytes = out.bytes();
  const bool roomy = !budget || !budget->available_bytes() ||
                     static_cast<int64_t>(*budget->available_bytes()) >= bytes + memory_left_for_others;
  if (roomy) {
    if (budget) {
      TARE_ASSIGN(out.held_, budget->reserve("calibration activations", static_cast<uint64_t>(bytes)));
    }
    out.values_.resize(static_cast<size_t>(tokens * width));
    return out;
  }
  out.fd_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (out.fd_ < 0) {
    // File systems without O_TMPFILE: a name that is removed at once.
    std::string name = folder + "/.activations-XXXXXX";
    out.fd_ = ::mkstemp(name.data());
    if (out.fd_ < 0) return failed("cannot make a temporary file for activations", folder);
    ::unlink(name.c_str());
  }
  return out;
}

TokenStore::TokenStore(TokenStore&& other) noexcept {
  *this = std::move(other);
}

TokenStore& TokenStore::operator=(TokenStore&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  tokens_ = other.tokens_;
  width_ = other.width_;
  values_ = std::move(other.values_);
  row_buffer_ = std::move(other.row_buffer_);
  held_ = std::move(other.held_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

TokenStore::~TokenStore() {
  if (fd_ >= 0) ::close(fd_);
}

Status TokenStore::write_bytes(int64_t first, int64_t count, const uint16_t* in) {
  if (fd_ < 0) {
    std::copy_n(in, count * width_, values_.data() + first * width_);
    return {};
  }
  const char* bytes = reinterpret_cast<const char*>(in);
  auto left = static_cast<size_t>(count * width_ * 2);
  auto at = static_cast<off_t>(first * width_ * 2);
  while (left > 0) {
    const ssize_t written = ::pwrite(fd_, bytes, left, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed("cannot spill activations", "temporary file");
    bytes += written;
    at += written;
    left -= static_cast<size_t>(written);
  }
  return {};
}

Status TokenStore::read_bytes(int64_t first, int64_t count, uint16_t* out) {
  if (fd_ < 0) {
    std::copy_n(values_.data() + first * width_, count * width_, out);
    return {};
  }
  char* bytes = reinterpret_cast<char*>(out);
  auto left = static_cast<size_t>(count * width_ * 2);
  auto at = static_cast<off_t>(first * width_ * 2);
  while (left > 0) {
    const ssize_t got = ::pread(fd_, bytes, left, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return failed("cannot read spilled activations", "temporary file");
    bytes += got;
    at += got;
    left -= static_cast<size_t>(got);
  }
  return {};
}

Status TokenStore::write(int64_t first, int64_t count, const float* rows) {
  row_buffer_.resize(static_cast<size_t>(count * width_));
  for (size_t i = 0; i < row_buffer_.size(); ++i) row_buffer_[i] = numerics::f32_to_bf16(rows[i]);
  return write_bytes(first, count, row_buffer_.data());
}

Status TokenStore::read(int64_t first, int64_t count, float* rows) {
  row_buffer_.resize(static_cast<size_t>(count * width_));
  TARE_TRY(read_bytes(first, count, row_buffer_.data()));
  for (size_t i = 0; i < row_buffer_.size(); ++i) rows[i] = numerics::bf16_to_f32(row_buffer_[i]);
  return {};
}

Result<std::string> TokenStore::save(const std::string& path) {
  TARE_ASSIGN(io::OutputFile file, io::OutputFile::create(path));
  for (int64_t first = 0; first < tokens_; first += kChunk) {
    const int64_t count = std::min(kChunk, tokens_ - first);
    row_buffer_.resize(static_cast<size_t>(count * width_));
    TARE_TRY(read_bytes(first, count, row_buffer_.data()));
    TARE_TRY(file.write(std::as_bytes(std::span(row_buffer_))));
  }
  TARE_ASSIGN(io::WrittenFile written, file.finish());
  return std::move(written.sha256);
}

Status TokenStore::load(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed("cannot open stored activations", path);
  Status status;
  for (int64_t first = 0; first < tokens_ && status.ok(); first += kChunk) {
    const int64_t count = std::min(kChunk, tokens_ - first);
    row_buffer_.resize(static_cast<size_t>(count * width_));
    char* bytes = reinterpret_cast<char*>(row_buffer_.data());
    size_t left = row_buffer_.size() * 2;
    while (left > 0) {
      const ssize_t got = ::read(fd, bytes, left);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        status = invalid_input("stored activations are too short", {.where = path});
        break;
      }
      bytes += got;
      left -= static_cast<size_t>(got);
    }
    if (status.ok()) status = write_bytes(first, count, row_buffer_.data());
  }
  ::close(fd);
  return status;
}

}  // namespace tare::quantize
