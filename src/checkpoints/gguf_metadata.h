#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "io/gguf.h"

namespace tare::checkpoints {

/// Reads the "<architecture>." keys of a GGUF and remembers which were read: a key that nobody read would change the
/// model without a word, so at the end it is refused.
class GgufMetadata {
 public:
  GgufMetadata(const io::GgufFile& file, std::string_view architecture);

  const io::GgufFile& file() const { return *file_; }
  bool has(std::string_view key) const;  // key without the architecture

  Result<int64_t> get_int(std::string_view key);
  Result<std::optional<int64_t>> find_int(std::string_view key);
  /// One number, or an array of equal ones (llama.cpp allows one a layer). Errors: different ones.
  Result<std::optional<int64_t>> find_uniform_int(std::string_view key);
  Result<std::optional<double>> find_float(std::string_view key);
  Result<std::optional<std::string>> find_string(std::string_view key);
  /// Read and of no consequence here.
  void ignore(std::string_view key);

  /// Errors: a key of this architecture that was not read.
  Status check_all_read() const;

 private:
  std::string full(std::string_view key) const;
  const io::GgufFile* file_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace tare::checkpoints
