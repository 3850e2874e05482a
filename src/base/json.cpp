#include "base/json.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "base/file.h"

namespace tare::json {

namespace {

// Boost.JSON keeps the last of two equal keys. A file that says a thing twice is refused here instead, so the document
// is walked once more with a handler that only remembers the keys of the open objects.
class DuplicateKeyHandler {
 public:
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_key_size = size_t(-1);
  static constexpr size_t max_string_size = size_t(-1);

  using error_code = boost::json::error_code;
  using string_view = boost::json::string_view;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    open_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, error_code&) {
    open_.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(size_t, error_code&) { return true; }
  bool on_key_part(string_view part, size_t, error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(string_view part, size_t, error_code& ec) {
    key_.append(part.data(), part.size());
    if (!open_.back().insert(key_).second) {
      duplicate = key_;
      ec = boost::json::make_error_code(boost::json::error::exception);
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(string_view, size_t, error_code&) { return true; }
  bool on_string(string_view, size_t, error_code&) { return true; }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(int64_t, string_view, error_code&) { return true; }
  bool on_uint64(uint64_t, string_view, error_code&) { return true; }
  bool on_double(double, string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  std::optional<std::string> duplicate;

 private:
  std::vector<std::unordered_set<std::string>> open_;  // keys of the objects around the current place
  std::string key_;
};

Error wrong_type(std::string_view key, std::string_view where, const char* expected, const value& found) {
  return invalid_input(
      fmt::format("'{}' has the wrong type", key),
      {.where = std::string(where), .expected = expected, .found = boost::json::serialize(found).substr(0, 80)});
}

}  // namespace

Result<value> parse(std::string_view text, std::string_view where, ParseLimits limits) {
  if (text.size() > limits.max_bytes) {
    return invalid_input("JSON document too large", {.where = std::string(where),
                                                     .expected = fmt::format("at most {} bytes", limits.max_bytes),
                                                     .found = fmt::format("{} bytes", text.size())});
  }
  boost::json::parse_options options;
  options.max_depth = limits.max_depth;
  boost::json::error_code ec;

  boost::json::stream_parser parser({}, options);
  const size_t consumed = parser.write_some(text.data(), text.size(), ec);
  if (!ec && consumed == text.size()) parser.finish(ec);
  const bool trailing = consumed < text.size() && text.find_first_not_of(" \t\r\n", consumed) != text.npos;
  if (ec || trailing || !parser.done()) {
    return invalid_input(
        "malformed JSON",
        {.where = std::string(where),
         .expected = "one JSON document",
         .found = fmt::format("{} near byte {}", ec ? ec.message() : "text after the document", consumed)});
  }

  boost::json::basic_parser<DuplicateKeyHandler> keys(options);
  boost::json::error_code keys_ec;
  keys.write_some(false, text.data(), text.size(), keys_ec);
  if (keys.handler().duplicate) {
    return invalid_input("duplicate key in JSON object",
                         {.where = std::string(where),
                          .expected = "each key once",
                          .found = fmt::format("'{}' twice", keys.handler().duplicate->substr(0, 200))});
  }
  return parser.release();
}

Result<value> parse_file(const std::string& path, ParseLimits limits) {
  TARE_ASSIGN(const std::string text, read_text_file(path, limits.max_bytes));
  return parse(text, path, limits);
}

const value* find(const object& from, std::string_view key) {
  const value* found = from.if_contains(key);
  return found && !found->is_null() ? found : nullptr;
}

std::optional<int64_t> as_int(const value& v) {
  if (v.is_int64()) return v.get_int64();
  if (v.is_uint64()) {
    if (v.get_uint64() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(v.get_uint64());
  }
  if (v.is_double()) {
    const double d = v.get_double();
    if (std::floor(d) == d && std::abs(d) < 9007199254740992.0) return static_cast<int64_t>(d);
  }
  return std::nullopt;
}

std::optional<double> as_number(const value& v) {
  if (v.is_double()) return v.get_double();
  if (v.is_int64()) return static_cast<double>(v.get_int64());
  if (v.is_uint64()) return static_cast<double>(v.get_uint64());
  return std::nullopt;
}

Result<int64_t> get_int(const object& from, std::string_view key, std::string_view where) {
  const value* v = find(from, key);
  if (!v)
    return invalid_input(fmt::format("'{}' is missing", key), {.where = std::string(where), .expected = "an integer"});
  if (const auto number = as_int(*v)) return *number;
  return wrong_type(key, where, "an integer", *v);
}

Result<int64_t> get_int_or(const object& from, std::string_view key, int64_t fallback, std::string_view where) {
  if (!find(from, key)) return fallback;
  return get_int(from, key, where);
}

Result<double> get_number_or(const object& from, std::string_view key, double fallback, std::string_view where) {
  const value* v = find(from, key);
  if (!v) return fallback;
  if (const auto number = as_number(*v)) return *number;
  return wrong_type(key, where, "a number", *v);
}

Result<bool> get_bool_or(const object& from, std::string_view key, bool fallback, std::string_view where) {
  const value* v = find(from, key);
  if (!v) return fallback;
  if (v->is_bool()) return v->get_bool();
  return wrong_type(key, where, "true or false", *v);
}

Result<std::string> get_string(const object& from, std::string_view key, std::string_view where) {
  const value* v = find(from, key);
  if (!v)
    return invalid_input(fmt::format("'{}' is missing", key), {.where = std::string(where), .expected = "a string"});
  if (v->is_string()) return std::string(v->get_string());
  return wrong_type(key, where, "a string", *v);
}

Result<std::string> get_string_or(const object& from, std::string_view key, std::string_view fallback,
                                  std::string_view where) {
  if (!find(from, key)) return std::string(fallback);
  return get_string(from, key, where);
}

}  // namespace tare::json
