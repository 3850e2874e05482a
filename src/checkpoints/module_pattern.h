#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tare::checkpoints {

/// A regular expression over module names, as configurations hold them (Python syntax), matched from the start of the
/// name like Python's re.match.
class ModulePattern {
 public:
  /// Errors: a pattern that does not compile; `where` names the configuration.
  static Result<ModulePattern> compile(std::string_view pattern, std::string_view where);

  /// False also when the match limit is reached (a pattern made to explode).
  bool matches(std::string_view name) const;

 private:
  std::shared_ptr<const void> code_;
};

}  // namespace tare::checkpoints
