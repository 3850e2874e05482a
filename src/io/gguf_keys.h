#pragma once

#include <string_view>

#include "base/result.h"
#include "io/gguf.h"

namespace tare::io {

/// Where the format gives a metadata key one type, a value of another type is a damaged or foreign file: refused here,
/// since llama.cpp refuses it too when it reads the key. Keys that are not in the table pass.
/// Errors: kInvalidInput, naming key and types.
Status check_known_key(std::string_view key, const GgufValue& value, std::string_view where);

}  // namespace tare::io
