#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "quantize/block_file.h"
#include "quantize/token_store.h"

namespace tare::quantize {

/// What a run has finished, on disk, so that a run that ends at any moment can go on: a folder with one file of packed
/// weights a block, the calibration streams behind the last block, and `journal.jsonl`: a first line with the
/// fingerprint of the run, then a line for each phase that begins and for each block that is finished. A block counts
/// when its line is whole; its files are on disk before that.
class Journal {
 public:
  /// Starts a journal, or with `resume` goes on with the one that is there (none there: starts one).
  /// fingerprint: what decides the result (version, model, data, settings), one entry each.
  /// Errors: kInvalidInput: a journal is there and resume is off; its fingerprint differs (every differing entry is
  /// named); a file of a finished block is missing or not as it was written. kIo.
  static Result<Journal> open(const std::string& folder, json::object fingerprint, bool resume);

  const std::string& folder() const { return folder_; }
  /// Number of finished blocks: 0 .. blocks()-1.
  int64_t blocks() const { return static_cast<int64_t>(lines_.size()); }
  /// Says which phase begins: "calibrate", "solve", "write", "rename". For people and tests.
  Status phase(std::string_view name, int64_t block = -1);

  /// Makes block blocks() final: its weights, its report, and the streams behind it.
  Status append(const std::vector<NamedWeight>& weights, json::object report, const std::vector<TokenStore*>& streams);
  /// The weights of a finished block, mapped, and its report.
  Result<std::vector<NamedWeight>> weights(int64_t block) const;
  std::string block_path(int64_t block) const;  // map_weights reads it
  const json::object& report(int64_t block) const { return lines_[static_cast<size_t>(block)]; }
  /// The streams behind the last finished block. Errors: another size than was written.
  Status restore(const std::vector<TokenStore*>& streams) const;

  /// Removes the folder: the result is in its place.
  Status remove();

 private:
  std::string stream_path(int64_t block, size_t stream) const;
  Status write_line(const json::object& line, bool sync);
  Status check_files() const;

  std::string folder_;
  std::vector<json::object> lines_;  // of the finished blocks
};

/// SHA-256 of a file's content, read in pieces. Errors: kIo.
Result<std::string> file_sha256(const std::string& path);

/// name -> SHA-256 of every file that makes up the model at `path` (a file, or the weights and configuration in a
/// folder). Errors: kIo.
Result<json::object> model_fingerprint(const std::string& path);

}  // namespace tare::quantize
