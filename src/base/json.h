#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tare::json {

using boost::json::array;
using boost::json::object;
using boost::json::value;

/// Limits of a document from outside. Nesting deeper than max_depth or text longer than max_bytes is refused.
struct ParseLimits {
  size_t max_bytes = size_t{512} << 20;
  size_t max_depth = 64;
};

/// Parses one JSON document. Errors: malformed text (with byte offset), duplicate object keys (named), limits.
/// `where` names the source in the message.
Result<value> parse(std::string_view text, std::string_view where, ParseLimits limits = {});
Result<value> parse_file(const std::string& path, ParseLimits limits = {});

/// Member of an object, or nothing when it is absent or null.
const value* find(const object& from, std::string_view key);

/// Typed members. Absent (or null) gives the fallback where there is one, else an error that names `where` and the key;
/// a member of the wrong type is always an error. Integers written as 2.0 are taken as integers.
Result<int64_t> get_int(const object& from, std::string_view key, std::string_view where);
Result<int64_t> get_int_or(const object& from, std::string_view key, int64_t fallback, std::string_view where);
Result<double> get_number_or(const object& from, std::string_view key, double fallback, std::string_view where);
Result<bool> get_bool_or(const object& from, std::string_view key, bool fallback, std::string_view where);
Result<std::string> get_string(const object& from, std::string_view key, std::string_view where);
Result<std::string> get_string_or(const object& from, std::string_view key, std::string_view fallback,
                                  std::string_view where);

/// The number as int64, if it is whole and fits.
std::optional<int64_t> as_int(const value& v);
std::optional<double> as_number(const value& v);

}  // namespace tare::json
