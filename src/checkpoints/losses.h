#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::checkpoints {

/// What a format cannot say of a model. Each loss is refused by name, or, with --allow-loss, made and listed.
class Losses {
 public:
  Losses(std::string format, bool allowed) : format_(std::move(format)), allowed_(allowed) {}

  bool allowed() const { return allowed_; }
  /// Names one loss. `where`: the weight or setting; `what`: what would be lost, with what becomes of it.
  /// Errors: kUnsupported, unless losses are allowed.
  Status lose(const std::string& where, const std::string& what);
  /// An error for what cannot be written even with a loss.
  Error refuse(const std::string& where, const std::string& what) const;

  const std::vector<std::string>& list() const { return list_; }

 private:
  std::string format_;
  bool allowed_ = false;
  std::vector<std::string> list_;
};

}  // namespace tare::checkpoints
