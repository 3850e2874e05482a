#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "quantize/calibration.h"

namespace tare::cli {

/// Calibration data with what has to be said about it.
struct CalibrationInput {
  quantize::CalibrationData data;
  std::string sha256;              // of the token ids, little-endian i32
  json::object record;             // for the configuration and the manifest
  std::vector<std::string> notes;  // share of template tokens, conversations that were cut or left out
};

/// Reads --calibration by the file's name:
///   *.json             token ids: one list cut into windows, or a list of lists, each one sequence
///   *.jsonl            one conversation a line, {"messages": [...]} or {"text": "..."}; the chat template is applied
///                      once, a conversation is one sequence, cut at `length` tokens; nothing is padded
///   anything else      text, cut into windows
///   empty              the built-in text, and a note says so
/// At most `samples` sequences. Errors: no tokens; a line that is no conversation (named); no chat template.
Result<CalibrationInput> read_calibration(const std::string& model, const std::string& file, int64_t samples,
                                          int64_t length);

}  // namespace tare::cli
