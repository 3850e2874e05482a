#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/file.h"

namespace tare::testing {

/// Every file below a folder, by its path there.
inline std::map<std::string, std::string> content_of(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      out[std::filesystem::relative(entry.path(), folder).string()] = *read_text_file(entry.path().string());
  }
  return out;
}

/// Token ids for --calibration, the same in each run; returns the file.
inline std::string calibration_file(const std::string& folder, int tokens) {
  std::string path = folder + "/ids.json";
  std::ofstream out(path);
  out << "[";
  for (int i = 0; i < tokens; ++i) out << (i ? "," : "") << (i * i * 31 + i * 7) % 250;
  out << "]";
  return path;
}

}  // namespace tare::testing
