#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace tare::text::jinja {

/// A moment as a wall clock shows it. month 1..12, day 1..31.
struct CivilTime {
  int year = 1970, month = 1, day = 1, hour = 0, minute = 0, second = 0, microsecond = 0;
};

/// Bounds on one render. A template that needs more fails with kLimit.
struct RenderLimits {
  int64_t max_steps = 20'000'000;              // expressions, statements, list items; 64 bytes of new text count one
  int max_call_depth = 100;                    // macros, callers and recursive loops within each other
  int max_evaluation_depth = 1500;             // expressions and statements within each other, over all calls
  size_t max_stack_bytes = size_t{3} << 20;    // of the calling thread, from the start of the render
  size_t max_output_bytes = size_t{16} << 20;  // also of every single string on the way
  int64_t max_range = 100'000;                 // items of one range()
};

/// What a render works with: limits, clock, and Python's operations on values. One render, one thread.
class Runtime {
 public:
  explicit Runtime(const RenderLimits& limits, std::optional<CivilTime> now) : limits_(limits), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const RenderLimits& limits() const { return limits_; }
  /// The set time, or the system's local time.
  CivilTime now() const;

  // Accounts. Everything that makes or walks something large goes through them.
  Out<void> charge(size_t steps);
  Out<void> charge_bytes(size_t bytes) { return charge(bytes / 64 + 1); }
  Out<void> check_size(size_t bytes) const;

  // Values.
  Out<Value> text(std::string bytes, bool safe = false);
  Out<Value> sequence(std::vector<Value> items, SequenceForm form, std::string label = "");
  Out<Value> list(std::vector<Value> items) { return sequence(std::move(items), SequenceForm::kList); }
  Out<Value> tuple(std::vector<Value> items) { return sequence(std::move(items), SequenceForm::kTuple); }
  Out<Value> dict(Dict dict);
  Out<Value> generator(std::vector<Value> items, FaultPtr pending = nullptr);
  /// Adds an entry; fails when the key cannot be one.
  Out<void> set_entry(Dict& dict, Value key, Value value);
  /// Objects that can be changed are kept here and emptied when the render ends.
  template <class T>
  std::shared_ptr<T> keep(std::shared_ptr<T> object) {
    objects_.push_back(object);
    return object;
  }
  /// Lets go of a kept object that nothing else holds, if it was the last one kept.
  void release(const std::shared_ptr<Object>& object);

  // Python's operations. (runtime.cpp, operators.cpp)
  static bool truth(const Value& value);
  Out<int64_t> length(const Value& value);
  Out<std::vector<Value>> iterate(const Value& value);
  Out<Value> attribute(const Value& of, std::string_view name);
  Out<Value> item(const Value& of, const Value& key);
  Out<Value> slice(const Value& of, const Value& start, const Value& stop, const Value& step);
  Out<Value> call(const Value& callee, CallArguments& arguments);
  Out<bool> equal(const Value& a, const Value& b);
  Out<bool> less(const Value& a, const Value& b);
  Out<bool> compare(Comparison comparison, const Value& a, const Value& b);
  Out<bool> contains(const Value& container, const Value& item);
  Out<Value> binary(Operation operation, const Value& a, const Value& b);
  Out<Value> negate(const Value& value, bool negative);

  // Text of values. (print.cpp)
  Out<std::string> print(const Value& value);
  Out<std::string> repr(const Value& value);
  Out<void> append_repr(std::string& out, const Value& value, int depth);

  // Depth of calls.
  Out<void> enter_call();
  void leave_call() { --call_depth_; }

 private:
  Out<bool> less_items(const Value& a, const Value& b);

  RenderLimits limits_;
  std::optional<CivilTime> now_;
  int64_t steps_ = 0;
  int call_depth_ = 0;
  std::vector<std::shared_ptr<Object>> objects_;
};

/// Arguments sorted by parameter name. `given[i]` is null where the caller gave none.
struct Arguments {
  std::vector<const Value*> given;

  const Value* operator[](size_t i) const { return given[i]; }
};
/// Errors: too many, unknown name, one given twice, fewer than `required`.
Out<Arguments> bind(std::string_view callee, const CallArguments& arguments,
                    std::initializer_list<std::string_view> parameters, size_t required = 0);

/// An argument as a type, or the fallback where it was not given. Errors name the callee.
Out<Integer> integer_argument(std::string_view callee, const Value* given, Integer fallback);
Out<std::string> string_argument(std::string_view callee, const Value* given, std::string_view fallback);

std::string integer_text(Integer value);
/// repr() of a float: the shortest digits that give the same number back.
std::string real_text(double value);
std::string repr_text(std::string_view text);
/// & < > " ' as HTML entities.
std::string escape_html(std::string_view text);

struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// Python's json.dumps.
Out<void> append_json(Runtime& runtime, std::string& out, const Value& value, const JsonStyle& style, int depth = 0);

/// `format % values` and format.format(...).
Out<Value> percent_format(Runtime& runtime, const Value& format, const Value& values);
Out<Value> brace_format(Runtime& runtime, const Value& format, const CallArguments& arguments);
/// format(value, specification).
Out<std::string> format_value(Runtime& runtime, const Value& value, std::string_view specification);
/// int(text, base) and float(text); nothing when the text is no number.
std::optional<Integer> parse_integer(std::string_view text, int base);
std::optional<double> parse_real(std::string_view text);
/// 'f', 'e' or 'g' (or upper case) with a precision, as C prints it.
std::string format_real(double value, char type, int precision, bool alternate);

/// strftime in the C locale; source: POSIX strftime and glibc's flags - _ 0 ^ #.
Out<std::string> format_time(const CivilTime& time, std::string_view format);

/// Position of `needle` in `text` at or after `from`, or npos. Linear in the length of both.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);

}  // namespace tare::text::jinja
