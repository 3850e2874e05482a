#include "quantize/token_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "numerics/mini_float.h"

namespace tare::quantize {

namespace {

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

Status TokenStore::write(int64_t first, int64_t count, const float* rows) {
  const auto values = static_cast<size_t>(count * width_);
  uint16_t* out = nullptr;
  if (fd_ < 0) {
    out = values_.data() + first * width_;
  } else {
    row_buffer_.resize(values);
    out = row_buffer_.data();
  }
  for (size_t i = 0; i < values; ++i) out[i] = numerics::f32_to_bf16(rows[i]);
  if (fd_ < 0) return {};
  const char* bytes = reinterpret_cast<const char*>(out);
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

Status TokenStore::read(int64_t first, int64_t count, float* rows) {
  const auto values = static_cast<size_t>(count * width_);
  const uint16_t* in = nullptr;
  if (fd_ < 0) {
    in = values_.data() + first * width_;
  } else {
    row_buffer_.resize(values);
    char* bytes = reinterpret_cast<char*>(row_buffer_.data());
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
    in = row_buffer_.data();
  }
  for (size_t i = 0; i < values; ++i) rows[i] = numerics::bf16_to_f32(in[i]);
  return {};
}

}  // namespace tare::quantize
