#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tare::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

/// Messages of at least this level go to standard error; the cli sets it (--log-level, --quiet).
void set_level(Level level);
bool enabled(Level level);
void write(Level level, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning)) write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tare::log
