#include <fmt/format.h>

#include "base/result.h"
#include "text/jinja/natives.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace tare::text::jinja {

namespace {

using Predicate = bool (*)(const Value&);

template <Predicate predicate>
Out<Value> simple(Runtime&, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("test", arguments, {}));
  return Value::boolean(predicate(self));
}

bool defined(const Value& v) {
  return !v.is_undefined();
}
bool undefined(const Value& v) {
  return v.is_undefined();
}
bool none(const Value& v) {
  return v.is_none();
}
bool boolean(const Value& v) {
  return v.is_bool();
}
bool is_true(const Value& v) {
  return v.is_bool() && v.as_bool();
}
bool is_false(const Value& v) {
  return v.is_bool() && !v.as_bool();
}
bool integer(const Value& v) {
  return v.is_integer();
}
bool real(const Value& v) {
  return v.is_real();
}
bool number(const Value& v) {
  return v.is_number();
}
bool string(const Value& v) {
  return v.is_string();
}
bool mapping(const Value& v) {
  return v.is_dict();
}
// Undefined has a length and takes an index (which fails), so Python counts it in.
bool sequence(const Value& v) {
  return v.is_string() || v.is_indexable() || v.is_dict() || v.is_undefined();
}
bool iterable(const Value& v) {
  return v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined() ||
         (v.is_object() && v.object()->iterable());
}
// Undefined has a __call__ too.
bool callable(const Value& v) {
  return v.is_undefined() || (v.is_object() && v.object()->callable());
}
bool escaped(const Value& v) {
  return v.is_safe();
}

template <bool upper_case>
Out<Value> letter_case(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("test", arguments, {}));
  TARE_ASSIGN(const std::string text, runtime.print(self));
  return find_string_method(upper_case ? "isupper" : "islower")(runtime, Value::string(text), arguments);
}

Out<Value> remainder(Runtime& runtime, const Value& self, Integer by, Integer wanted) {
  TARE_ASSIGN(const Value rest, runtime.binary(Operation::kModulo, self, Value::integer(by)));
  TARE_ASSIGN(const bool same, runtime.equal(rest, Value::integer(wanted)));
  return Value::boolean(same);
}
Out<Value> odd(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("odd", arguments, {}));
  return remainder(runtime, self, 2, 1);
}
Out<Value> even(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("even", arguments, {}));
  return remainder(runtime, self, 2, 0);
}
Out<Value> divisible_by(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("divisibleby", arguments, {"num"}, 1));
  TARE_ASSIGN(const Value rest, runtime.binary(Operation::kModulo, self, *given[0]));
  TARE_ASSIGN(const bool zero, runtime.equal(rest, Value::integer(0)));
  return Value::boolean(zero);
}

Out<Value> same_as(Runtime&, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("sameas", arguments, {"other"}, 1));
  return Value::boolean(self.identical(*given[0]));
}

template <Comparison comparison>
Out<Value> compared(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const Arguments given, bind("test", arguments, {"other"}, 1));
  TARE_ASSIGN(const bool holds, runtime.compare(comparison, self, *given[0]));
  return Value::boolean(holds);
}

template <Native (*find)(std::string_view)>
Out<Value> exists(Runtime&, const Value& self, CallArguments& arguments) {
  TARE_TRY(bind("test", arguments, {}));
  return Value::boolean(self.is_string() && find(self.bytes()) != nullptr);
}

constexpr NamedNative kTests[] = {
    {"defined", simple<defined>},
    {"undefined", simple<undefined>},
    {"none", simple<none>},
    {"boolean", simple<boolean>},
    {"true", simple<is_true>},
    {"false", simple<is_false>},
    {"integer", simple<integer>},
    {"float", simple<real>},
    {"number", simple<number>},
    {"string", simple<string>},
    {"mapping", simple<mapping>},
    {"sequence", simple<sequence>},
    {"iterable", simple<iterable>},
    {"callable", simple<callable>},
    {"escaped", simple<escaped>},
    {"upper", letter_case<true>},
    {"lower", letter_case<false>},
    {"odd", odd},
    {"even", even},
    {"divisibleby", divisible_by},
    {"sameas", same_as},
    {"filter", exists<find_filter>},
    {"test", exists<find_test>},
    {"in", compared<Comparison::kIn>},
    {"eq", compared<Comparison::kEqual>},
    {"equalto", compared<Comparison::kEqual>},
    {"==", compared<Comparison::kEqual>},
    {"ne", compared<Comparison::kNotEqual>},
    {"!=", compared<Comparison::kNotEqual>},
    {"lt", compared<Comparison::kLess>},
    {"lessthan", compared<Comparison::kLess>},
    {"<", compared<Comparison::kLess>},
    {"le", compared<Comparison::kLessEqual>},
    {"<=", compared<Comparison::kLessEqual>},
    {"gt", compared<Comparison::kGreater>},
    {"greaterthan", compared<Comparison::kGreater>},
    {">", compared<Comparison::kGreater>},
    {"ge", compared<Comparison::kGreaterEqual>},
    {">=", compared<Comparison::kGreaterEqual>},
};

}  // namespace

Native find_test(std::string_view name) {
  return find_native(kTests, name);
}

}  // namespace tare::text::jinja
