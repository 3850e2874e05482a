#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "cli/command.h"

namespace tare::cli {

/// Text of a file; "-" is standard input.
Result<std::string> read_input(const std::string& path);

/// For each line of the file (or of standard input, "-") that is a JSON object: calls handle and prints one line, what
/// it returned or {"error": ...}. A line that is no object with known keys prints its error too, and the command then
/// ends with kInvalidInput after the last line. Empty lines are skipped. An error of `handle` is a result, not a
/// failure of the command. Stops when interrupted.
Status for_each_json_line(Context& context, const std::string& path, std::initializer_list<std::string_view> known_keys,
                          const std::function<Result<json::object>(const json::object&)>& handle);

/// Token ids of a JSON array of whole numbers in [0, 2^31). Errors name `where`.
Result<std::vector<int32_t>> token_ids_of(const json::value& array, std::string_view where);

}  // namespace tare::cli
