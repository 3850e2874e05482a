#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos && text.size() < 18;
}

// A copy to sort by, with text in lower case unless case counts.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value::string(lower(value.bytes())) : value;
}

// Sorts positions by keys; a comparison that fails ends it.
Out<std::vector<size_t>> sorted(Runtime& runtime, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  FaultPtr failed;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (failed) return false;
    Out<void> paid = runtime.charge(1);
    Out<bool> less = paid.ok() ? (reverse ? runtime.less(keys[b], keys[a]) : runtime.less(keys[a], keys[b]))
                               : Out<bool>(std::move(paid).error());
    if (!less.ok()) failed = std::move(less).error();
    return !failed && *less;
  });
  if (failed) return failed;
  return order;
}

Out<Value> sort(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  const bool reverse = given[0] && Runtime::truth(*given[0]);
  const bool case_sensitive = given[1] && Runtime::truth(*given[1]);
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  std::vector<Value> keys;
  for (const Value& item : all) {
    // A list for each item: several attributes, separated by commas, compare in turn, and equal parts are never
    // ordered.
    std::vector<Value> parts;
    if (!given[2] || given[2]->is_none()) {
      parts.push_back(sort_key(item, case_sensitive));
    } else if (given[2]->is_string()) {
      std::string_view rest = given[2]->bytes();
      for (;;) {
        const size_t comma = rest.find(',');
        TARE_ASSIGN(const Value part, item_by_path(runtime, item, Value::string(std::string(rest.substr(0, comma)))));
        parts.push_back(sort_key(part, case_sensitive));
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
      }
    } else {
      TARE_ASSIGN(const Value part, item_by_path(runtime, item, *given[2]));
      parts.push_back(sort_key(part, case_sensitive));
    }
    TARE_ASSIGN(Value key, runtime.list(std::move(parts)));
    keys.push_back(std::move(key));
  }
  TARE_ASSIGN(const std::vector<size_t> order, sorted(runtime, keys, reverse));
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(all[i]);
  return runtime.list(std::move(out));
}

Out<Value> dictsort(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  const bool case_sensitive = given[0] && Runtime::truth(*given[0]);
  TARE_ASSIGN(const std::string by, string_argument("dictsort", given[1], "key"));
  if (by != "key" && by != "value") return type_fault("You can only sort by either \"key\" or \"value\"");
  if (self.is_undefined()) return type_fault(self.missing_message());
  if (!self.is_dict()) return type_fault(fmt::format("'{}' object has no attribute 'items'", self.type_name()));
  std::vector<Value> pairs, keys;
  for (const auto& [key, value] : self.dict().entries()) {
    keys.push_back(sort_key(by == "key" ? key : value, case_sensitive));
    TARE_ASSIGN(Value pair, runtime.tuple({key, value}));
    pairs.push_back(std::move(pair));
  }
  TARE_ASSIGN(const std::vector<size_t> order, sorted(runtime, keys, given[2] && Runtime::truth(*given[2])));
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(pairs[i]);
  return runtime.list(std::move(out));
}

Out<Value> groupby(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1));
  const bool case_sensitive = given[2] && Runtime::truth(*given[2]);
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  std::vector<Value> keys;
  for (const Value& item : all) {
    TARE_ASSIGN(Value key, item_by_path(runtime, item, *given[0]));
    if (key.is_undefined() && given[1] && !given[1]->is_none()) key = *given[1];
    keys.push_back(std::move(key));
  }
  std::vector<Value> compared;
  for (const Value& key : keys) compared.push_back(sort_key(key, case_sensitive));
  TARE_ASSIGN(const std::vector<size_t> order, sorted(runtime, compared, false));
  std::vector<Value> groups;
  for (size_t i = 0; i < order.size();) {
    std::vector<Value> members;
    size_t end = i;
    for (; end < order.size(); ++end) {
      TARE_ASSIGN(const bool same, runtime.equal(compared[order[i]], compared[order[end]]));
      if (!same) break;
      members.push_back(all[order[end]]);
    }
    TARE_ASSIGN(Value list, runtime.list(std::move(members)));
    TARE_ASSIGN(Value group, runtime.sequence({keys[order[i]], std::move(list)}, SequenceForm::kTuple, "group"));
    groups.push_back(std::move(group));
    i = std::max(end, i + 1);
  }
  return runtime.list(std::move(groups));
}

Out<Value> unique(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("unique", arguments, {"case_sensitive", "attribute"}));
  const bool case_sensitive = given[0] && Runtime::truth(*given[0]);
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : all) {
    Value key = item;
    if (given[1] && !given[1]->is_none()) {
      TARE_ASSIGN(key, item_by_path(runtime, item, *given[1]));
    }
    key = sort_key(key, case_sensitive);
    if (Dict::can_be_key(key) && seen.find(key)) continue;
    if (Out<void> added = runtime.set_entry(seen, key, None{}); !added.ok()) {
      return runtime.generator(std::move(out), std::move(added).error());
    }
    out.push_back(item);
  }
  return runtime.generator(std::move(out));
}

template <bool largest>
Out<Value> extreme(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"}));
  const bool case_sensitive = given[0] && Runtime::truth(*given[0]);
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  if (all.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < all.size(); ++i) {
    Value key = all[i];
    if (given[1] && !given[1]->is_none()) {
      TARE_ASSIGN(key, item_by_path(runtime, key, *given[1]));
    }
    key = sort_key(key, case_sensitive);
    if (i > 0) {
      TARE_ASSIGN(const bool better, largest ? runtime.less(best_key, key) : runtime.less(key, best_key));
      if (!better) continue;
    }
    best = i;
    best_key = std::move(key);
  }
  return all[best];
}

Out<Value> sum(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("sum", arguments, {"attribute", "start"}));
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  Value total = given[1] ? *given[1] : Value::integer(0);
  if (total.is_string()) return type_fault("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : all) {
    Value term = item;
    if (given[0] && !given[0]->is_none()) {
      TARE_ASSIGN(term, item_by_path(runtime, item, *given[0]));
    }
    TARE_ASSIGN(total, runtime.binary(Operation::kAdd, total, term));
  }
  return total;
}

// What follows the first argument: arguments of the filter or test that it names.
CallArguments tail(const CallArguments& arguments, size_t from) {
  CallArguments rest;
  for (size_t i = from; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  rest.named = arguments.named;
  return rest;
}

Out<Value> map(Runtime& runtime, const Value& self, CallArguments& arguments) {
  if (!Runtime::truth(self)) return runtime.generator({});  // None too: it is looked at before it is walked
  Value path, fallback;
  Native filter = nullptr;
  CallArguments rest;
  if (arguments.positional.empty()) {
    for (const auto& [name, value] : arguments.named) {
      if (name == "attribute") {
        path = value;
      } else if (name == "default") {
        fallback = value;
      } else {
        return type_fault(fmt::format("Unexpected keyword argument '{}'", name));
      }
    }
    if (path.is_undefined()) return type_fault("map requires a filter argument");
  } else {
    const Value& name = arguments.positional[0];
    filter = name.is_string() ? find_filter(name.bytes()) : nullptr;
    rest = tail(arguments, 1);
  }
  Out<std::vector<Value>> all = runtime.iterate(self);
  if (!all.ok()) return runtime.generator({}, std::move(all).error());
  std::vector<Value> out;
  for (const Value& item : *all) {
    TARE_TRY(runtime.charge(1));
    if (!arguments.positional.empty() && !filter) {
      TARE_ASSIGN(const std::string name, runtime.print(arguments.positional[0]));
      return runtime.generator(std::move(out), type_fault(fmt::format("No filter named '{}'.", name)));
    }
    TARE_TRY(runtime.charge(rest.positional.size()));
    CallArguments copy = rest;
    TARE_TRY(runtime.enter_call());  // map('map', 'map', ...) would nest as deep as it has arguments
    Out<Value> mapped = filter ? filter(runtime, item, copy) : item_by_path(runtime, item, path);
    runtime.leave_call();
    if (!mapped.ok()) return runtime.generator(std::move(out), std::move(mapped).error());
    if (!filter && mapped.value().is_undefined() && !fallback.is_undefined() && !fallback.is_none()) mapped = fallback;
    out.push_back(*std::move(mapped));
  }
  return runtime.generator(std::move(out));
}

template <bool keep, bool by_attribute>
Out<Value> select(Runtime& runtime, const Value& self, CallArguments& arguments) {
  if (!Runtime::truth(self)) return runtime.generator({});  // None too: it is looked at before it is walked
  if (by_attribute && arguments.positional.empty()) {
    return runtime.generator({}, type_fault("Missing parameter for attribute name"));
  }
  const size_t skip = by_attribute ? 1 : 0;
  Native test = nullptr;
  const bool named = arguments.positional.size() > skip;
  if (named && arguments.positional[skip].is_string()) test = find_test(arguments.positional[skip].bytes());
  const CallArguments rest = named ? tail(arguments, skip + 1) : CallArguments{};
  Out<std::vector<Value>> all = runtime.iterate(self);
  if (!all.ok()) return runtime.generator({}, std::move(all).error());
  std::vector<Value> out;
  for (const Value& item : *all) {
    TARE_TRY(runtime.charge(1));
    if (named && !test) {
      TARE_ASSIGN(const std::string name, runtime.print(arguments.positional[skip]));
      return runtime.generator(std::move(out), type_fault(fmt::format("No test named '{}'.", name)));
    }
    Out<Value> subject = by_attribute ? item_by_path(runtime, item, arguments.positional[0]) : Out<Value>(item);
    if (subject.ok() && test) {
      CallArguments copy = rest;
      const Value tested = *subject;
      subject = test(runtime, tested, copy);
    }
    if (!subject.ok()) return runtime.generator(std::move(out), std::move(subject).error());
    if (Runtime::truth(*subject) == keep) out.push_back(item);
  }
  return runtime.generator(std::move(out));
}

// An attribute only, never an entry of a dict.
Out<Value> attr(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("attr", arguments, {"name"}, 1));
  if (!given[0]->is_string()) return type_fault("attribute name must be string");
  const std::string& name = given[0]->bytes();
  if (self.is_dict() && !find_dict_method(name)) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return runtime.attribute(self, name);
}

constexpr NamedNative kFilters[] = {
    {"sort", sort},
    {"dictsort", dictsort},
    {"attr", attr},
    {"groupby", groupby},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
};

}  // namespace

Out<Value> item_by_path(Runtime& runtime, const Value& of, const Value& path) {
  if (!path.is_string()) return runtime.item(of, path);
  Value value = of;
  std::string_view rest = path.bytes();
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    const Value key = all_digits(part) ? Value::integer(std::stoll(part)) : Value::string(part);
    TARE_ASSIGN(value, runtime.item(value, key));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

Native find_selection_filter(std::string_view name) {
  return find_native(kFilters, name);
}

}  // namespace tare::text::jinja
