#include "cli/json_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/interrupt.h"

namespace tare::cli {

Result<std::string> read_input(const std::string& path) {
  return read_text_file(path == "-" ? "/dev/stdin" : path);
}

namespace {

Result<json::object> parse_line(std::string_view line, const std::string& where,
                                std::initializer_list<std::string_view> known_keys) {
  TARE_ASSIGN(json::value document, json::parse(line, where));
  if (!document.is_object()) return invalid_input("wrong line", {.where = where, .expected = "a JSON object"});
  for (const auto& member : document.get_object()) {
    const std::string_view key = member.key();
    if (std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end()) {
      return invalid_input("unknown key", {.where = where,
                                           .expected = fmt::format("{}", fmt::join(known_keys, ", ")),
                                           .found = fmt::format("'{}'", key)});
    }
  }
  return std::move(document.get_object());
}

}  // namespace

Status for_each_json_line(Context& context, const std::string& path, std::initializer_list<std::string_view> known_keys,
                          const std::function<Result<json::object>(const json::object&)>& handle) {
  TARE_ASSIGN(const std::string content, read_input(path));
  std::optional<Error> first_bad;
  size_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    TARE_TRY(check_interrupt("reading " + path));
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto input = parse_line(line, fmt::format("{}, line {}", path, number), known_keys);
    if (!input.ok()) {
      context.emit_line({{"error", input.error().message()}});
      if (!first_bad) first_bad = input.error();
      continue;
    }
    const auto output = handle(*input);
    context.emit_line(output.ok() ? *output : json::object{{"error", output.error().message()}});
  }
  if (first_bad) return *first_bad;
  return {};
}

Result<std::vector<int32_t>> token_ids_of(const json::value& array, std::string_view where) {
  if (!array.is_array()) {
    return invalid_input("token ids have the wrong form", {.where = std::string(where), .expected = "an array"});
  }
  std::vector<int32_t> ids;
  ids.reserve(array.get_array().size());
  for (const json::value& item : array.get_array()) {
    const auto id = json::as_int(item);
    if (!id || *id < 0 || *id > INT32_MAX) {
      return invalid_input("wrong token id", {.where = std::string(where),
                                              .expected = "a whole number from 0",
                                              .found = boost::json::serialize(item).substr(0, 80)});
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace tare::cli
