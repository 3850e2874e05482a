#include <fmt/format.h>

#include "quantize/transform.h"

namespace tare::quantize {

const std::vector<Transform>& transforms() {
  static const std::vector<Transform> table = {};
  return table;
}

Result<const Transform*> find_transform(std::string_view name) {
  std::string known;
  for (const Transform& row : transforms()) {
    if (row.name == name) return &row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_input("unknown transform", {.expected = known, .found = fmt::format("'{}'", name)});
}

}  // namespace tare::quantize
