#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tare::io {

/// True if the bytes are well-formed UTF-8 (no overlong forms, no surrogates, nothing past U+10FFFF).
bool is_valid_utf8(std::string_view text);

/// Names of tensors and keys: not empty, well-formed UTF-8, at most 65,535 bytes, and none of the characters that no
/// tool writes there and that hint at damage: controls, spaces, quotes, backslashes.
/// what: "tensor name", "metadata key". Errors: kInvalidInput; the name is shown with unprintable bytes as \xNN.
Status check_name(std::string_view name, std::string_view what, std::string_view where);

/// A string from a file for an error message: at most 200 bytes, unprintable ones as \xNN, in quotes.
std::string printable(std::string_view text);

}  // namespace tare::io
