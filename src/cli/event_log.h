#pragma once

#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace tare::cli {

/// JSON lines of what happens, for --log-json: appended, each with its seconds since the start.
class EventLog {
 public:
  /// Errors: the file cannot be written.
  Status open(const std::string& path) {
    file_.open(path, std::ios::app);
    if (!file_) return io_error("cannot write the log", {.where = path});
    return {};
  }
  explicit operator bool() const { return file_.is_open(); }
  void line(json::object event) {
    event["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    file_ << boost::json::serialize(event) << std::endl;
  }

 private:
  std::ofstream file_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace tare::cli
