#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/result.h"
#include "text/jinja/objects.h"
#include "text/jinja/runtime.h"

namespace tare::text::jinja {

namespace {

FaultPtr overflow() {
  return limit_fault("integer beyond 128 bits");
}

std::string_view symbol(Operation operation) {
  constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<size_t>(operation)];
}

FaultPtr unsupported_operands(Operation operation, const Value& a, const Value& b) {
  return type_fault(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(operation), a.type_name(),
                                b.type_name()));
}

double floor_mod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

Out<Value> integer_power(Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) return type_fault("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Integer result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return Value::integer(result);
}

Out<Value> integer_binary(Operation operation, Integer a, Integer b) {
  Integer result = 0;
  switch (operation) {
    case Operation::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Out<Value>(overflow()) : Value::integer(result);
    case Operation::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? Out<Value>(overflow()) : Value::integer(result);
    case Operation::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? Out<Value>(overflow()) : Value::integer(result);
    case Operation::kDivide:
      if (b == 0) return type_fault("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operation::kFloorDivide:
    case Operation::kModulo: {
      if (b == 0) return type_fault("integer division or modulo by zero");
      if (b == -1) {
        if (operation == Operation::kModulo) return Value::integer(0);
        return __builtin_sub_overflow(Integer(0), a, &result) ? Out<Value>(overflow()) : Value::integer(result);
      }
      const bool adjust = a % b != 0 && (a % b < 0) != (b < 0);
      if (operation == Operation::kModulo) return Value::integer(a % b + (adjust ? b : 0));
      return Value::integer(a / b - (adjust ? 1 : 0));
    }
    case Operation::kPower:
      return integer_power(a, b);
  }
  return overflow();
}

Out<Value> real_binary(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::kAdd:
      return Value::real(a + b);
    case Operation::kSubtract:
      return Value::real(a - b);
    case Operation::kMultiply:
      return Value::real(a * b);
    case Operation::kPower: {
      if (a == 0 && b < 0) return type_fault("0.0 cannot be raised to a negative power");
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) return type_fault("complex numbers are not supported");
      if (std::isinf(power) && !std::isinf(a) && !std::isinf(b)) return type_fault("numerical result out of range");
      return Value::real(power);
    }
    default:
      break;
  }
  if (b == 0) return type_fault("float division by zero");
  if (operation == Operation::kDivide) return Value::real(a / b);
  const double rest = floor_mod(a, b);
  if (operation == Operation::kModulo) return Value::real(rest);
  return Value::real(std::round((a - rest) / b));
}

}  // namespace

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

Out<Value> Runtime::binary(Operation operation, const Value& a, const Value& b) {
  if (a.is_undefined()) return type_fault(a.missing_message());
  if (operation == Operation::kModulo && a.is_string()) return percent_format(*this, a, b);
  if (b.is_undefined()) return type_fault(b.missing_message());
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return integer_binary(operation, a.as_integer(), b.as_integer());
    return real_binary(operation, a.as_real(), b.as_real());
  }
  if (operation == Operation::kAdd) {
    if (a.is_string() && b.is_string()) {
      const bool safe = a.is_safe() || b.is_safe();
      TARE_TRY(check_size(a.bytes().size() + b.bytes().size()));
      std::string joined;
      joined.reserve(a.bytes().size() + b.bytes().size());
      joined += safe && !a.is_safe() ? escape_html(a.bytes()) : a.bytes();
      joined += safe && !b.is_safe() ? escape_html(b.bytes()) : b.bytes();
      return text(std::move(joined), safe);
    }
    if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
      TARE_TRY(charge(a.items().size() + b.items().size()));
      std::vector<Value> items = a.items();
      items.insert(items.end(), b.items().begin(), b.items().end());
      return sequence(std::move(items), a.sequence().form);
    }
    if (a.is_string()) return type_fault(fmt::format("can only concatenate str (not \"{}\") to str", b.type_name()));
    if (a.is_list()) return type_fault(fmt::format("can only concatenate list (not \"{}\") to list", b.type_name()));
  }
  if (operation == Operation::kMultiply && (a.is_integral() || b.is_integral())) {
    const Value& repeated = a.is_integral() ? b : a;
    const Integer wanted = a.is_integral() ? a.as_integer() : b.as_integer();
    const size_t times = wanted <= 0 ? 0 : wanted > (Integer(1) << 40) ? size_t{1} << 40 : static_cast<size_t>(wanted);
    if (repeated.is_string()) {
      const std::string& unit = repeated.bytes();
      if (!unit.empty()) TARE_TRY(check_size(times > limits_.max_output_bytes ? times : unit.size() * times));
      std::string bytes;
      for (size_t i = 0; i < times && !unit.empty(); ++i) bytes += unit;
      return text(std::move(bytes), repeated.is_safe());
    }
    if (repeated.is_list() || repeated.is_tuple()) {
      const std::vector<Value>& unit = repeated.items();
      std::vector<Value> items;
      if (!unit.empty()) TARE_TRY(charge(times > (size_t{1} << 32) ? times : times * unit.size()));
      for (size_t i = 0; i < times && !unit.empty(); ++i) items.insert(items.end(), unit.begin(), unit.end());
      return sequence(std::move(items), repeated.sequence().form);
    }
  }
  return unsupported_operands(operation, a, b);
}

Out<Value> Runtime::negate(const Value& value, bool negative) {
  if (value.is_undefined()) return type_fault(value.missing_message());
  if (value.is_integral()) {
    return negative ? integer_binary(Operation::kSubtract, 0, value.as_integer()) : Value::integer(value.as_integer());
  }
  if (value.is_real()) return Value::real(negative ? -value.as_real() : value.as_real());
  return type_fault(fmt::format("bad operand type for unary {}: '{}'", negative ? '-' : '+', value.type_name()));
}

Out<bool> Runtime::equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return KeyEqual()(a, b);
  if (a.is_string() && b.is_string()) {
    if (a.bytes().size() == b.bytes().size()) TARE_TRY(charge(a.bytes().size() / 1024));
    return a.bytes() == b.bytes();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.identical(b)) return true;
  if (a.is_sequence() && b.is_sequence()) {
    const Sequence &x = a.sequence(), &y = b.sequence();
    if (x.form != y.form || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i) {
      TARE_TRY(charge(1));  // shared parts make the tree exponentially larger than what is stored
      TARE_ASSIGN(const bool same, equal(x.items[i], y.items[i]));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    for (const auto& [key, value] : a.dict().entries()) {
      TARE_TRY(charge(1));
      const Value* other = b.dict().find(key);
      if (!other) return false;
      TARE_ASSIGN(const bool same, equal(value, *other));
      if (!same) return false;
    }
    return true;
  }
  return false;
}

Out<bool> Runtime::less_items(const Value& a, const Value& b) {
  const std::vector<Value>&x = a.items(), &y = b.items();
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
    TARE_TRY(charge(1));
    TARE_ASSIGN(const bool same, equal(x[i], y[i]));
    if (!same) return less(x[i], y[i]);
  }
  return x.size() < y.size();
}

Out<bool> Runtime::less(const Value& a, const Value& b) {
  if (a.is_undefined()) return type_fault(a.missing_message());
  if (b.is_undefined()) return type_fault(b.missing_message());
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_integer() < b.as_integer();
    return a.as_real() < b.as_real();
  }
  if (a.is_string() && b.is_string()) {
    TARE_TRY(charge(std::min(a.bytes().size(), b.bytes().size()) / 1024));
    return a.bytes() < b.bytes();  // UTF-8 sorts as its code points do
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) return less_items(a, b);
  return type_fault(fmt::format("'<' not supported between instances of '{}' and '{}'", a.type_name(), b.type_name()));
}

Out<bool> Runtime::compare(Comparison comparison, const Value& a, const Value& b) {
  const auto negated = [](Out<bool> result) -> Out<bool> {
    if (!result.ok()) return result;
    return !result.value();
  };
  const bool nan = (a.is_real() && std::isnan(a.as_real())) || (b.is_real() && std::isnan(b.as_real()));
  switch (comparison) {
    case Comparison::kEqual:
      return equal(a, b);
    case Comparison::kNotEqual:
      return negated(equal(a, b));
    case Comparison::kLess:
      return less(a, b);
    case Comparison::kGreater:
      return less(b, a);
    case Comparison::kLessEqual:
      if (nan && a.is_number() && b.is_number()) return false;
      return negated(less(b, a));
    case Comparison::kGreaterEqual:
      if (nan && a.is_number() && b.is_number()) return false;
      return negated(less(a, b));
    case Comparison::kIn:
      return contains(b, a);
    case Comparison::kNotIn:
      return negated(contains(b, a));
  }
  return false;
}

Out<bool> Runtime::contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) return type_fault(item.missing_message());
    if (!item.is_string()) {
      return type_fault(fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    }
    TARE_TRY(charge((container.bytes().size() + item.bytes().size()) / 256));
    return find_text(container.bytes(), item.bytes()) != std::string_view::npos;
  }
  if (container.is_dict()) {
    if (!Dict::can_be_key(item)) return type_fault(fmt::format("unhashable type: '{}'", item.type_name()));
    return container.dict().find(item) != nullptr;
  }
  if (container.is_sequence()) {
    for (const Value& candidate : container.items()) {
      TARE_TRY(charge(1));
      TARE_ASSIGN(const bool same, equal(candidate, item));
      if (same) return true;
    }
    return false;
  }
  if (auto* generator = container.object_as<Generator>()) {
    for (;;) {
      TARE_ASSIGN(const std::unique_ptr<Value> next, generator->next());
      if (!next) return false;
      TARE_ASSIGN(const bool same, equal(*next, item));
      if (same) return true;
    }
  }
  if (container.is_undefined()) return false;
  return type_fault(fmt::format("argument of type '{}' is not iterable", container.type_name()));
}

}  // namespace tare::text::jinja
