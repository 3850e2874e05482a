#pragma once

#include <boost/json/fwd.hpp>
#include <string>

namespace tare::cli {

/// One line of valid JSON. What JSON cannot say is replaced: NaN and infinities become null, bytes that are no UTF-8
/// become U+FFFD.
std::string json_line(const boost::json::value& document);

}  // namespace tare::cli
