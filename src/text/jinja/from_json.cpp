#include "text/jinja/from_json.h"

#include <boost/json.hpp>

#include "base/result.h"

namespace tare::text::jinja {

namespace {

constexpr int kMaxJsonDepth = 90;  // below the depth that values may have, so that a template can still wrap it

Out<Value> convert(Runtime& runtime, const boost::json::value& json, int depth);

Out<Value> convert_array(Runtime& runtime, const boost::json::array& json, int depth) {
  if (depth > kMaxJsonDepth) return limit_fault("JSON input nested too deep");
  std::vector<Value> items;
  items.reserve(json.size());
  for (const boost::json::value& item : json) {
    TARE_ASSIGN(Value value, convert(runtime, item, depth + 1));
    items.push_back(std::move(value));
  }
  return runtime.list(std::move(items));
}

Out<Value> convert(Runtime& runtime, const boost::json::value& json, int depth) {
  if (json.is_null()) return Value(None{});
  if (json.is_bool()) return Value::boolean(json.get_bool());
  if (json.is_int64()) return Value::integer(json.get_int64());
  if (json.is_uint64()) return Value::integer(json.get_uint64());
  if (json.is_double()) return Value::real(json.get_double());
  if (json.is_string()) return Value::string(std::string(json.get_string()));
  if (json.is_array()) return convert_array(runtime, json.get_array(), depth);
  if (depth > kMaxJsonDepth) return limit_fault("JSON input nested too deep");
  Dict dict;
  for (const auto& [key, item] : json.get_object()) {
    TARE_ASSIGN(Value value, convert(runtime, item, depth + 1));
    dict.set(Value::string(std::string(key)), std::move(value));
  }
  return runtime.dict(std::move(dict));
}

}  // namespace

Out<Value> from_json(Runtime& runtime, const boost::json::value& json) {
  return convert(runtime, json, 0);
}
Out<Value> from_json(Runtime& runtime, const boost::json::array& json) {
  return convert_array(runtime, json, 0);
}

}  // namespace tare::text::jinja
