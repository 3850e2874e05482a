#pragma once

#include <string>

#include "base/json.h"

namespace tare::eval {

/// One self-contained HTML page (inline SVG, nothing loaded from elsewhere) from the document that `tare quantize
/// --json` prints: sizes, the gate with its intervals, the error of every matrix beside round-to-nearest, what was
/// substituted. Missing keys leave their part out. All text from the document is escaped.
std::string quantize_report_html(const json::object& document);

}  // namespace tare::eval
