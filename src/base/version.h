#pragma once

#include <string_view>

namespace tare {

/// The release, in manifests and `--version`. CMakeLists.txt reads this line too.
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace tare
