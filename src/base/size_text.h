#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tare {

/// "2GiB", "1.5 GiB", "900MiB", "100MB", "4096" (bytes) -> bytes. KiB, MiB, GiB, TiB count by 1024; kB, MB, GB, TB by
/// 1000; case does not matter. `where` names the flag in the message.
/// Errors: kInvalidInput (no number, negative, unknown unit, beyond 2^63).
Result<uint64_t> parse_size(std::string_view text, std::string_view where);

/// Bytes for people: "0 B", "1023 B", "1.50 GiB", "93.8 MiB".
std::string size_text(uint64_t bytes);

}  // namespace tare
