#include <fmt/format.h>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/objects.h"
#include "text/jinja/runtime.h"

namespace tare::text::jinja {

namespace {

Out<Value> raise_exception(Runtime& runtime, const Value&, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("raise_exception", arguments, {"message"}, 1));
  TARE_ASSIGN(std::string message, runtime.print(*given[0]));
  return fault(FaultKind::kRaised, std::move(message));
}

Out<Value> strftime_now(Runtime& runtime, const Value&, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("strftime_now", arguments, {"format"}, 1));
  TARE_ASSIGN(const std::string format, string_argument("strftime_now", given[0], ""));
  TARE_ASSIGN(std::string text, format_time(runtime.now(), format));
  return runtime.text(std::move(text));
}

Out<Value> range(Runtime& runtime, const Value&, CallArguments& arguments) {
  const std::vector<Value>& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty())
    return type_fault("range expected 1 to 3 arguments");
  Integer bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < given.size(); ++i) {
    TARE_ASSIGN(bounds[given.size() == 1 ? 1 : i], integer_argument("range", &given[i], 0));
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) return type_fault("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (Integer i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= runtime.limits().max_range) {
      return limit_fault(fmt::format("range too big: more than {} items", runtime.limits().max_range));
    }
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  std::string label = fmt::format("range({}, {}", integer_text(start), integer_text(stop));
  label += step == 1 ? ")" : fmt::format(", {})", integer_text(step));
  return runtime.sequence(std::move(items), SequenceForm::kRange, std::move(label));
}

// dict(mapping or pairs, name=value, ...), which is also what namespace() takes.
Out<Dict> make_dict(Runtime& runtime, std::string_view callee, CallArguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) return type_fault(fmt::format("{} expected at most 1 argument", callee));
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      dict = from.dict();
    } else {
      TARE_ASSIGN(const std::vector<Value> pairs, runtime.iterate(from));
      for (const Value& pair : pairs) {
        TARE_ASSIGN(std::vector<Value> parts, runtime.iterate(pair));
        if (parts.size() != 2) return type_fault("dictionary update sequence element needs length 2");
        TARE_TRY(runtime.set_entry(dict, std::move(parts[0]), std::move(parts[1])));
      }
    }
  }
  for (auto& [name, value] : arguments.named) dict.set(Value::string(name), std::move(value));
  TARE_TRY(runtime.charge(dict.size()));
  return dict;
}

Out<Value> dict(Runtime& runtime, const Value&, CallArguments& arguments) {
  TARE_ASSIGN(Dict made, make_dict(runtime, "dict", arguments));
  return runtime.dict(std::move(made));
}

Out<Value> make_namespace(Runtime& runtime, const Value&, CallArguments& arguments) {
  TARE_ASSIGN(const Dict made, make_dict(runtime, "namespace", arguments));
  const auto space = runtime.keep(std::make_shared<Namespace>());
  for (const auto& [key, value] : made.entries()) {
    if (key.is_string()) space->set(key.bytes(), value);
  }
  return Value::object(space);
}

Out<Value> cycler(Runtime& runtime, const Value&, CallArguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty())
    return type_fault("at least one item has to be provided");
  return Value::object(runtime.keep(std::make_shared<Cycler>(std::move(arguments.positional))));
}

Out<Value> joiner(Runtime& runtime, const Value&, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("joiner", arguments, {"sep"}));
  return Value::object(runtime.keep(std::make_shared<Joiner>(given[0] ? *given[0] : Value::string(", "))));
}

constexpr NamedNative kGlobals[] = {
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"range", range},
    {"dict", dict},
    {"namespace", make_namespace},
    {"cycler", cycler},
    {"joiner", joiner},
};

}  // namespace

Native find_global(std::string_view name) {
  return find_native(kGlobals, name);
}

}  // namespace tare::text::jinja
