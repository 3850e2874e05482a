#pragma once

#include <memory>
#include <string_view>

#include "text/jinja/ast.h"

namespace tare::text::jinja {

/// Bounds on the source of a template.
struct ParseLimits {
  size_t max_bytes = size_t{4} << 20;
  size_t max_tokens = 1000000;
  int max_nesting = 120;     // brackets, tags and operators within each other while parsing
  int max_tree_depth = 500;  // of one expression; long chains of + count each
};

/// Parses a template. Thread-safe.
/// Errors: kSyntax (with line): malformed tags, unknown tags, a filter or test that does not exist where it would
/// surely run (inside an if it fails when it is reached, as in Jinja2); kLimit.
Out<std::unique_ptr<const Template>> parse_template(std::string_view source, const ParseLimits& limits);

}  // namespace tare::text::jinja
