#pragma once

#include <boost/json/fwd.hpp>

#include "text/jinja/runtime.h"

namespace tare::text::jinja {

/// A JSON value as Python's json.loads would give it. Errors: kLimit when it is nested too deep.
Out<Value> from_json(Runtime& runtime, const boost::json::value& json);
Out<Value> from_json(Runtime& runtime, const boost::json::array& json);

}  // namespace tare::text::jinja
