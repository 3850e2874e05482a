#pragma once

#include <string_view>

namespace tare::text {

/// Code points that have a general category ("L", "Lu", "Nd", ...) since a later Unicode version than the one PCRE2
/// knows, as ranges for the inside of a bracketed class. Empty for other properties.
std::string_view later_ranges(std::string_view property);

}  // namespace tare::text
