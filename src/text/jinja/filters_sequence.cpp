#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/objects.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

Out<Value> length(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("length", arguments, {}));
  TARE_ASSIGN(const int64_t count, runtime.length(self));
  return Value::integer(count);
}

Out<Value> list(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("list", arguments, {}));
  TARE_ASSIGN(std::vector<Value> items, runtime.iterate(self));
  return runtime.list(std::move(items));
}

Out<Value> first(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("first", arguments, {}));
  if (auto* generator = self.object_as<Generator>()) {
    TARE_ASSIGN(const std::unique_ptr<Value> next, generator->next());
    return next ? *next : Value::undefined("No first item, sequence was empty.");
  }
  TARE_ASSIGN(const std::vector<Value> items, runtime.iterate(self));
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Out<Value> last(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("last", arguments, {}));
  if (self.is_object()) return type_fault(fmt::format("'{}' object is not reversible", self.type_name()));
  TARE_ASSIGN(const std::vector<Value> items, runtime.iterate(self));
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Out<Value> reverse(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("reverse", arguments, {}));
  if (self.is_string()) return runtime.slice(self, None{}, None{}, Value::integer(-1));
  TARE_ASSIGN(std::vector<Value> items, runtime.iterate(self));
  std::reverse(items.begin(), items.end());
  return runtime.generator(std::move(items));
}

Out<Value> items(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("items", arguments, {}));
  std::vector<Value> pairs;
  if (self.is_undefined()) return runtime.generator(std::move(pairs));
  if (!self.is_dict()) {
    return runtime.generator(std::move(pairs), type_fault("Can only get item pairs from a mapping."));
  }
  for (const auto& [key, value] : self.dict().entries()) {
    TARE_ASSIGN(Value pair, runtime.tuple({key, value}));
    pairs.push_back(std::move(pair));
  }
  return runtime.generator(std::move(pairs));
}

Out<Value> default_filter(Runtime& runtime, const Value& self, CallArguments& arguments) {
  (void)runtime;
  TARE_ASSIGN(const Arguments given, bind("default", arguments, {"default_value", "boolean"}));
  const bool falsy = given[1] && Runtime::truth(*given[1]) && !Runtime::truth(self);
  if (!self.is_undefined() && !falsy) return self;
  return given[0] ? *given[0] : Value::string("");
}

Out<Value> int_filter(Runtime& runtime, const Value& self, CallArguments& arguments) {
  (void)runtime;
  TARE_ASSIGN(const Arguments given, bind("int", arguments, {"default", "base"}));
  TARE_ASSIGN(const Integer base, integer_argument("int", given[1], 10));
  const Value fallback = given[0] ? *given[0] : Value::integer(0);
  if (self.is_undefined()) return type_fault(self.missing_message());
  if (self.is_integral()) return Value::integer(self.as_integer());
  std::optional<double> real;
  if (self.is_real()) real = self.as_real();
  if (self.is_string()) {
    if (base != 0 && (base < 2 || base > 36)) return fallback;
    if (const auto whole = parse_integer(self.bytes(), static_cast<int>(base))) return Value::integer(*whole);
    real = parse_real(self.bytes());
  }
  if (!real || std::isnan(*real) || std::isinf(*real)) return fallback;
  if (std::abs(*real) > 1e38) return limit_fault("integer beyond 128 bits");
  return Value::integer(static_cast<Integer>(*real));
}

Out<Value> float_filter(Runtime& runtime, const Value& self, CallArguments& arguments) {
  (void)runtime;
  TARE_ASSIGN(const Arguments given, bind("float", arguments, {"default"}));
  if (self.is_undefined()) return type_fault(self.missing_message());
  if (self.is_number()) return Value::real(self.as_real());
  if (self.is_string()) {
    if (const auto real = parse_real(self.bytes())) return Value::real(*real);
  }
  return given[0] ? *given[0] : Value::real(0);
}

Out<Value> abs_filter(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("abs", arguments, {}));
  if (self.is_undefined()) return type_fault(self.missing_message());
  if (self.is_real()) return Value::real(std::abs(self.as_real()));
  if (!self.is_integral()) return type_fault(fmt::format("bad operand type for abs(): '{}'", self.type_name()));
  return runtime.negate(self, self.as_integer() < 0);
}

Out<Value> round(Runtime& runtime, const Value& self, CallArguments& arguments) {
  (void)runtime;
  TARE_ASSIGN(const Arguments given, bind("round", arguments, {"precision", "method"}));
  TARE_ASSIGN(const Integer precision, integer_argument("round", given[0], 0));
  TARE_ASSIGN(const std::string method, string_argument("round", given[1], "common"));
  if (self.is_undefined()) return type_fault(self.missing_message());
  if (!self.is_number()) return type_fault(fmt::format("type {} doesn't define __round__ method", self.type_name()));
  if (precision > 300 || precision < -300) return self;
  const int digits = static_cast<int>(precision);
  if (method == "common") {
    if (self.is_integral() && digits >= 0) return Value::integer(self.as_integer());
    // Correctly rounded, half to even on the exact value: what printing that many digits does.
    const double scale = digits < 0 ? std::pow(10.0, -digits) : 1;
    if (digits < 0) {
      const double rounded = std::nearbyint(self.as_real() / scale) * scale;
      return self.is_integral() ? Value::integer(static_cast<Integer>(rounded)) : Value::real(rounded);
    }
    return Value::real(parse_real(format_real(self.as_real(), 'f', digits, false)).value_or(self.as_real()));
  }
  if (method != "ceil" && method != "floor") return type_fault("method must be common, ceil or floor");
  const double scale = std::pow(10.0, digits);
  const double scaled = self.as_real() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Out<Value> join(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("join", arguments, {"d", "attribute"}));
  const std::string_view empty;
  std::string separator(empty);
  if (given[0]) {
    TARE_ASSIGN(separator, runtime.print(*given[0]));
  }
  TARE_ASSIGN(std::vector<Value> parts, runtime.iterate(self));
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    Value part = parts[i];
    if (given[1] && !given[1]->is_none()) {
      TARE_ASSIGN(part, item_by_path(runtime, part, *given[1]));
    }
    if (i) out += separator;
    if (part.is_string()) {
      out += part.bytes();
    } else {
      TARE_ASSIGN(const std::string text, runtime.print(part));
      out += text;
    }
    TARE_TRY(runtime.check_size(out.size()));
  }
  return runtime.text(std::move(out));
}

Out<Value> batch(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("batch", arguments, {"linecount", "fill_with"}, 1));
  TARE_ASSIGN(const Integer size, integer_argument("batch", given[0], 1));
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  std::vector<Value> lines, line;
  const auto flush = [&]() -> Out<void> {
    TARE_ASSIGN(Value made, runtime.list(std::move(line)));
    lines.push_back(std::move(made));
    line.clear();
    return {};
  };
  for (const Value& item : all) {
    if (static_cast<Integer>(line.size()) == size) TARE_TRY(flush());
    line.push_back(item);
  }
  if (!line.empty()) {
    if (given[1] && !given[1]->is_none()) {
      TARE_TRY(runtime.charge(size > 0 ? static_cast<size_t>(size) : 0));
      while (static_cast<Integer>(line.size()) < size) line.push_back(*given[1]);
    }
    TARE_TRY(flush());
  }
  return runtime.generator(std::move(lines));
}

Out<Value> slice(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("slice", arguments, {"slices", "fill_with"}, 1));
  TARE_ASSIGN(const Integer wanted, integer_argument("slice", given[0], 1));
  TARE_ASSIGN(const std::vector<Value> all, runtime.iterate(self));
  if (wanted == 0) return type_fault("integer division or modulo by zero");
  if (wanted < 0) return runtime.generator({});
  TARE_TRY(runtime.charge(static_cast<size_t>(std::min<Integer>(wanted, Integer(1) << 40))));
  const auto slices = static_cast<size_t>(wanted);
  const size_t each = all.size() / slices, extra = all.size() % slices;
  std::vector<Value> parts;
  for (size_t i = 0, at = 0; i < slices; ++i) {
    const size_t size = each + (i < extra);
    std::vector<Value> part(all.begin() + static_cast<std::ptrdiff_t>(at),
                            all.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    if (given[1] && !given[1]->is_none() && i >= extra) part.push_back(*given[1]);
    TARE_ASSIGN(Value made, runtime.list(std::move(part)));
    parts.push_back(std::move(made));
  }
  return runtime.generator(std::move(parts));
}

constexpr NamedNative kFilters[] = {
    {"length", length},    {"count", length},   {"list", list},
    {"first", first},      {"last", last},      {"reverse", reverse},
    {"items", items},      {"join", join},      {"default", default_filter},
    {"d", default_filter}, {"int", int_filter}, {"float", float_filter},
    {"abs", abs_filter},   {"round", round},    {"batch", batch},
    {"slice", slice},
};

}  // namespace

Native find_sequence_filter(std::string_view name) {
  return find_native(kFilters, name);
}

}  // namespace tare::text::jinja
