#include "text/jinja/runtime.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/objects.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

constexpr int kMaxValueDepth = 100;  // containers within each other

// What Jinja2 calls the thing in "'x' has no attribute 'y'".
std::string owner_name(const Value& value) {
  return value.is_none() ? "None" : fmt::format("{} object", value.type_name());
}

Value no_attribute(const Value& of, std::string_view name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", owner_name(of), name));
}

Value method(Native run, const Value& self, std::string_view name) {
  if (run == forbidden) {
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, self.type_name()));
  }
  return Value::object(std::make_shared<NativeFunction>(run, self, std::string(name)));
}

bool internal_name(std::string_view name) {
  return name.size() > 4 && name.substr(0, 2) == "__" && name.ends_with("__");
}

}  // namespace

Runtime::~Runtime() {
  // Emptied one by one while all are alive: no cycle keeps anything, and no chain of objects is destroyed recursively.
  for (const auto& object : objects_) object->clear();
}

CivilTime Runtime::now() const {
  if (now_) return *now_;
  const auto moment = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(moment);
  std::tm local{};
  localtime_r(&seconds, &local);
  return {local.tm_year + 1900, local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec, 0};
}

Out<void> Runtime::charge(size_t steps) {
  steps_ += static_cast<int64_t>(std::min<size_t>(steps, size_t{1} << 40));
  if (steps_ > limits_.max_steps)
    return limit_fault(fmt::format("template takes more than {} steps", limits_.max_steps));
  return {};
}

Out<void> Runtime::check_size(size_t bytes) const {
  if (bytes <= limits_.max_output_bytes) return {};
  return limit_fault(fmt::format("template makes a text of more than {} bytes", limits_.max_output_bytes));
}

Out<Value> Runtime::text(std::string bytes, bool safe) {
  TARE_TRY(check_size(bytes.size()));
  TARE_TRY(charge_bytes(bytes.size()));
  return Value::string(std::move(bytes), safe);
}

Out<Value> Runtime::sequence(std::vector<Value> items, SequenceForm form, std::string label) {
  TARE_TRY(charge(items.size() + 1));
  auto made = std::make_shared<Sequence>();
  for (const Value& item : items) made->depth = std::max(made->depth, item.depth() + 1);
  if (made->depth > kMaxValueDepth) return limit_fault(fmt::format("lists nested deeper than {}", kMaxValueDepth));
  made->items = std::move(items);
  made->form = form;
  made->label = std::move(label);
  return Value(Value::Storage(std::shared_ptr<const Sequence>(std::move(made))));
}

Out<Value> Runtime::dict(Dict dict) {
  TARE_TRY(charge(dict.size() + 1));
  if (dict.depth() > kMaxValueDepth) return limit_fault(fmt::format("dicts nested deeper than {}", kMaxValueDepth));
  return Value(Value::Storage(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict)))));
}

Out<Value> Runtime::generator(std::vector<Value> items, FaultPtr pending) {
  TARE_TRY(charge(items.size() + 1));
  return Value::object(std::make_shared<Generator>(std::move(items), std::move(pending)));
}

Out<void> Runtime::set_entry(Dict& dict, Value key, Value value) {
  if (!Dict::can_be_key(key)) return type_fault(fmt::format("unhashable type: '{}'", key.type_name()));
  dict.set(std::move(key), std::move(value));
  return {};
}

void Runtime::release(const std::shared_ptr<Object>& object) {
  if (!objects_.empty() && objects_.back() == object && object.use_count() == 2) {
    object->clear();
    objects_.pop_back();
  }
}

Out<void> Runtime::enter_call() {
  if (++call_depth_ > limits_.max_call_depth) {
    --call_depth_;
    return limit_fault(fmt::format("macros call each other more than {} deep", limits_.max_call_depth));
  }
  return {};
}

bool Runtime::truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integral()) return value.as_integer() != 0;
  if (value.is_real()) return value.as_real() != 0;
  if (value.is_string()) return !value.bytes().empty();
  if (value.is_sequence()) return !value.items().empty();
  if (value.is_dict()) return value.dict().size() != 0;
  return value.object()->length() != 0;
}

Out<int64_t> Runtime::length(const Value& value) {
  if (value.is_undefined()) return int64_t{0};
  if (value.is_string()) {
    TARE_TRY(charge_bytes(value.bytes().size()));
    return static_cast<int64_t>(code_point_count(value.bytes()));
  }
  if (value.is_sequence()) return static_cast<int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  if (value.is_object() && value.object()->length() >= 0) return value.object()->length();
  return type_fault(fmt::format("object of type '{}' has no len()", value.type_name()));
}

Out<std::vector<Value>> Runtime::iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_sequence()) {
    TARE_TRY(charge(value.items().size()));
    return value.items();
  }
  if (value.is_dict()) {
    TARE_TRY(charge(value.dict().size()));
    for (const auto& [key, unused] : value.dict().entries()) items.push_back(key);
    return items;
  }
  if (value.is_string()) {
    const std::string& text = value.bytes();
    TARE_TRY(charge(text.size()));
    for (size_t i = 0; i < text.size();) {
      const size_t n = code_point_at(text, i).bytes;
      items.push_back(Value::string(text.substr(i, n)));
      i += n;
    }
    return items;
  }
  if (value.is_object() && value.object()->iterable()) return value.object()->iterate(*this);
  return type_fault(fmt::format("'{}' object is not iterable", value.type_name()));
}

Out<Value> Runtime::attribute(const Value& of, std::string_view name) {
  if (of.is_undefined()) return type_fault(of.missing_message());
  if (internal_name(name)) return method(forbidden, of, name);
  if (of.is_string()) {
    if (const Native run = find_string_method(name)) return method(run, of, name);
  } else if (of.is_dict()) {
    if (const Native run = find_dict_method(name)) return method(run, of, name);
    if (const Value* found = of.dict().find(name)) return *found;
  } else if (of.is_sequence()) {
    if (of.sequence().label == "group" && (name == "grouper" || name == "list")) return of.items()[name == "list"];
    if (const Native run = find_sequence_method(of.sequence().form, name)) return method(run, of, name);
  } else if (of.is_object()) {
    TARE_ASSIGN(const std::unique_ptr<Value> found, of.object()->attribute(*this, name));
    if (found) return *found;
  }
  return no_attribute(of, name);
}

Out<Value> Runtime::item(const Value& of, const Value& key) {
  if (of.is_undefined()) return type_fault(of.missing_message());
  if (of.is_dict()) {
    if (Dict::can_be_key(key)) {
      if (const Value* found = of.dict().find(key)) return *found;
    }
  } else if (key.is_integral() && (of.is_indexable() || of.is_string())) {
    TARE_ASSIGN(const int64_t size, length(of));
    Integer index = key.as_integer();
    if (index < 0) index += size;
    if (index >= 0 && index < size) {
      if (of.is_indexable()) return of.items()[static_cast<size_t>(index)];
      const size_t at = byte_offset(of.bytes(), static_cast<size_t>(index));
      return Value::string(of.bytes().substr(at, code_point_at(of.bytes(), at).bytes), of.is_safe());
    }
  }
  if (key.is_string()) {
    const std::string& name = key.bytes();
    if (of.is_dict()) {
      const Native run = internal_name(name) ? forbidden : find_dict_method(name);
      return run ? method(run, of, name) : no_attribute(of, name);
    }
    return attribute(of, name);
  }
  TARE_ASSIGN(const std::string shown, repr(key));
  return Value::undefined(fmt::format("{} has no element {}", owner_name(of), shown));
}

Out<Value> Runtime::slice(const Value& of, const Value& start, const Value& stop, const Value& step) {
  if (of.is_undefined()) return type_fault(of.missing_message());
  if (!of.is_string() && !of.is_indexable()) {
    return type_fault(fmt::format("'{}' object cannot be sliced", of.type_name()));
  }
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->is_none() && !bound->is_integral()) {
      return type_fault("slice indices must be integers or None");
    }
  }
  std::vector<size_t> offsets;
  if (of.is_string()) {
    TARE_TRY(charge(of.bytes().size() / 8 + 1));
    offsets = code_point_offsets(of.bytes());
  }
  const Integer size = static_cast<Integer>(of.is_string() ? offsets.size() - 1 : of.items().size());
  const Integer by = step.is_none() ? 1 : step.as_integer();
  if (by == 0) return type_fault("slice step cannot be zero");
  // Python's rule: negative counts from the end, then clamped to what the direction can reach.
  const auto clamp = [&](const Value& bound, Integer fallback) -> Integer {
    if (bound.is_none()) return fallback;
    Integer at = bound.as_integer();
    if (at < 0) at += size;
    const Integer low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
    return at < low ? low : at > high ? high : at;
  };
  const Integer from = clamp(start, by > 0 ? 0 : size - 1);
  const Integer to = clamp(stop, by > 0 ? size : -1);
  if (of.is_string() && by == 1) {
    if (from >= to) return Value::string("", of.is_safe());
    const size_t first = offsets[static_cast<size_t>(from)];
    return text(of.bytes().substr(first, offsets[static_cast<size_t>(to)] - first), of.is_safe());
  }
  std::string bytes;
  std::vector<Value> items;
  for (Integer i = from; by > 0 ? i < to : i > to;) {
    const auto at = static_cast<size_t>(i);
    if (of.is_string()) {
      bytes.append(of.bytes(), offsets[at], offsets[at + 1] - offsets[at]);
    } else {
      items.push_back(of.items()[at]);
    }
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (of.is_string()) return text(std::move(bytes), of.is_safe());
  return sequence(std::move(items), of.is_tuple() ? SequenceForm::kTuple : SequenceForm::kList);
}

Out<Value> Runtime::call(const Value& callee, CallArguments& arguments) {
  if (callee.is_undefined()) return type_fault(callee.missing_message());
  if (!callee.is_object()) return type_fault(fmt::format("'{}' object is not callable", callee.type_name()));
  const std::shared_ptr<Object> keep_alive = callee.object();
  return keep_alive->call(*this, arguments);
}

Out<Arguments> bind(std::string_view callee, const CallArguments& arguments,
                    std::initializer_list<std::string_view> parameters, size_t required) {
  Arguments bound;
  bound.given.resize(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    return type_fault(fmt::format("{}() takes at most {} arguments ({} given)", callee, parameters.size(),
                                  arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound.given[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t at = 0;
    while (at < parameters.size() && parameters.begin()[at] != name) ++at;
    if (at == parameters.size()) {
      return type_fault(fmt::format("{}() got an unexpected keyword argument '{}'", callee, name));
    }
    if (bound.given[at]) return type_fault(fmt::format("{}() got multiple values for argument '{}'", callee, name));
    bound.given[at] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound.given[i]) {
      return type_fault(fmt::format("{}() missing required argument '{}'", callee, parameters.begin()[i]));
    }
  }
  return bound;
}

Out<Integer> integer_argument(std::string_view callee, const Value* given, Integer fallback) {
  if (!given) return fallback;
  if (given->is_integral()) return given->as_integer();
  return type_fault(fmt::format("{}(): '{}' object cannot be interpreted as an integer", callee, given->type_name()));
}

Out<std::string> string_argument(std::string_view callee, const Value* given, std::string_view fallback) {
  if (!given) return std::string(fallback);
  if (given->is_string()) return given->bytes();
  return type_fault(fmt::format("{}() argument must be str, not {}", callee, given->type_name()));
}

}  // namespace tare::text::jinja
