#pragma once

#include <string>
#include <string_view>

namespace tare::eval {

/// Text as content or quoted attribute of HTML and SVG.
std::string escape_markup(std::string_view text);

}  // namespace tare::eval
