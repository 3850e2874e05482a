#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "testing/fixtures.h"
#include "text/tokenizer.h"

namespace tare::text::testing {

inline std::vector<TokenId> ids_of(const json::value& list) {
  std::vector<TokenId> out;
  for (const json::value& id : list.get_array()) out.push_back(static_cast<TokenId>(*json::as_int(id)));
  return out;
}

inline std::string text_of(const json::object& row, const char* key) {
  return std::string(row.at(key).get_string());
}

/// Calls visit(row) for each line of a file of JSON lines.
template <class Visit>
void for_each_row(const std::string& path, Visit visit) {
  std::istringstream lines(tare::testing::read_fixture(path));
  for (std::string line; std::getline(lines, line);) {
    const auto row = json::parse(line, path);
    ASSERT_TRUE(row.ok()) << row.error().message();
    visit(row->get_object());
  }
}

}  // namespace tare::text::testing
