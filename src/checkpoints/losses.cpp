#include "checkpoints/losses.h"

#include <fmt/format.h>

#include <algorithm>

namespace tare::checkpoints {

Status Losses::lose(const std::string& where, const std::string& what) {
  if (!allowed_) {
    return unsupported(fmt::format("{} cannot hold this weight as it is", format_),
                       {.where = where, .found = what, .hint = "pass --allow-loss, or write it as tare"});
  }
  std::string line = where + ": " + what;
  // Weights are looked at twice, to declare and to write them.
  if (std::find(list_.begin(), list_.end(), line) == list_.end()) list_.push_back(std::move(line));
  return {};
}

Error Losses::refuse(const std::string& where, const std::string& what) const {
  return unsupported(fmt::format("{} cannot hold this weight", format_),
                     {.where = where, .found = what, .hint = "write it as tare"});
}

}  // namespace tare::checkpoints
