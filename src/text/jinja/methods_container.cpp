#include <fmt/format.h>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/runtime.h"

namespace tare::text::jinja {

namespace {

enum class Part { kKeys, kValues, kItems };
template <Part part>
Out<Value> view(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("dict method", arguments, {}));
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().entries()) {
    if (part == Part::kItems) {
      TARE_ASSIGN(Value pair, runtime.tuple({key, value}));
      out.push_back(std::move(pair));
    } else {
      out.push_back(part == Part::kKeys ? key : value);
    }
  }
  return runtime.sequence(std::move(out), part == Part::kKeys     ? SequenceForm::kDictKeys
                                          : part == Part::kValues ? SequenceForm::kDictValues
                                                                  : SequenceForm::kDictItems);
}

Out<Value> get(Runtime&, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("get", arguments, {"key", "default"}, 1));
  if (!arguments.named.empty()) return type_fault("dict.get() takes no keyword arguments");
  if (!Dict::can_be_key(*given[0])) return type_fault(fmt::format("unhashable type: '{}'", given[0]->type_name()));
  if (const Value* found = self.dict().find(*given[0])) return *found;
  return given[1] ? *given[1] : Value(None{});
}

Out<Value> copy(Runtime&, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("copy", arguments, {}));
  return self;
}

Out<Value> fromkeys(Runtime& runtime, const Value&, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("fromkeys", arguments, {"iterable", "value"}, 1));
  TARE_ASSIGN(const std::vector<Value> keys, runtime.iterate(*given[0]));
  Dict dict;
  for (const Value& key : keys) TARE_TRY(runtime.set_entry(dict, key, given[1] ? *given[1] : Value(None{})));
  return runtime.dict(std::move(dict));
}

Out<Value> index(Runtime& runtime, const Value& self, CallArguments& arguments) {
  if (!arguments.named.empty()) return type_fault("index() takes no keyword arguments");
  TARE_ASSIGN(const Arguments given, bind("index", arguments, {"value", "start", "stop"}, 1));
  const auto size = static_cast<Integer>(self.items().size());
  TARE_ASSIGN(Integer from, integer_argument("index", given[1], 0));
  TARE_ASSIGN(Integer to, integer_argument("index", given[2], size));
  if (from < 0) from = std::max<Integer>(from + size, 0);
  if (to < 0) to = std::max<Integer>(to + size, 0);
  for (Integer i = from; i < to && i < size; ++i) {
    TARE_TRY(runtime.charge(1));
    TARE_ASSIGN(const bool same, runtime.equal(self.items()[static_cast<size_t>(i)], *given[0]));
    if (same) return Value::integer(i);
  }
  TARE_ASSIGN(const std::string shown, runtime.repr(*given[0]));
  return type_fault(fmt::format("{} is not in list", shown));
}

Out<Value> count(Runtime& runtime, const Value& self, CallArguments& arguments) {
  if (!arguments.named.empty()) return type_fault("count() takes no keyword arguments");
  TARE_ASSIGN(const Arguments given, bind("count", arguments, {"value"}, 1));
  Integer found = 0;
  for (const Value& item : self.items()) {
    TARE_TRY(runtime.charge(1));
    TARE_ASSIGN(const bool same, runtime.equal(item, *given[0]));
    found += same;
  }
  return Value::integer(found);
}

constexpr NamedNative kDictMethods[] = {
    {"items", view<Part::kItems>},
    {"keys", view<Part::kKeys>},
    {"values", view<Part::kValues>},
    {"get", get},
    {"copy", copy},
    {"fromkeys", fromkeys},
    {"clear", forbidden},
    {"pop", forbidden},
    {"popitem", forbidden},
    {"setdefault", forbidden},
    {"update", forbidden},
};

constexpr NamedNative kListMethods[] = {
    {"index", index},      {"count", count},       {"copy", copy},        {"append", forbidden},
    {"clear", forbidden},  {"extend", forbidden},  {"insert", forbidden}, {"pop", forbidden},
    {"remove", forbidden}, {"reverse", forbidden}, {"sort", forbidden},
};

constexpr NamedNative kTupleMethods[] = {{"index", index}, {"count", count}};

}  // namespace

Out<Value> forbidden(Runtime&, const Value&, CallArguments&) {
  return type_fault("access is unsafe");
}

Native find_dict_method(std::string_view name) {
  return find_native(kDictMethods, name);
}

Native find_sequence_method(SequenceForm form, std::string_view name) {
  if (form == SequenceForm::kList) return find_native(kListMethods, name);
  if (form == SequenceForm::kTuple || form == SequenceForm::kRange) return find_native(kTupleMethods, name);
  return nullptr;
}

}  // namespace tare::text::jinja
