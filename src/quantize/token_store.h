#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/result.h"

namespace tare::quantize {

/// Rows of one number a channel for every calibration token, held as bf16: in memory, or in a temporary file that has
/// no name (it goes when the process goes, however it ends). One thread at a time.
class TokenStore {
 public:
  TokenStore() = default;
  /// Memory when the budget grants it and `folder` need not be used; else a file in `folder`.
  /// Errors: kIo (the folder takes no file).
  static Result<TokenStore> make(int64_t tokens, int64_t width, const std::string& folder, MemoryBudget* budget,
                                 int64_t memory_left_for_others = 0);
  TokenStore(TokenStore&& other) noexcept;
  TokenStore& operator=(TokenStore&& other) noexcept;
  ~TokenStore();

  int64_t tokens() const { return tokens_; }
  int64_t width() const { return width_; }
  bool in_file() const { return fd_ >= 0; }
  int64_t bytes() const { return tokens_ * width_ * 2; }

  /// Rows [first, first + count), rounded to bf16. Errors: kIo (a full disk).
  Status write(int64_t first, int64_t count, const float* rows);
  Status read(int64_t first, int64_t count, float* rows);

  /// All rows as bytes in a file of their own, on disk when this returns its SHA-256; and back from one.
  /// Errors: kIo; kInvalidInput (a file of another size).
  Result<std::string> save(const std::string& path);
  Status load(const std::string& path);

 private:
  Status read_bytes(int64_t first, int64_t count, uint16_t* out);
  Status write_bytes(int64_t first, int64_t count, const uint16_t* in);

  int64_t tokens_ = 0;
  int64_t width_ = 0;
  std::vector<uint16_t> values_;
  std::vector<uint16_t> row_buffer_;  // of the file
  MemoryBudget::Reservation held_;
  int fd_ = -1;
};

}  // namespace tare::quantize
