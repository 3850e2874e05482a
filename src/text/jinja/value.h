#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/fault.h"

namespace tare::text::jinja {

class Value;
class Runtime;
struct CallArguments;

/// Python integers have no bound; here results that leave 128 bits are refused.
using Integer = __int128;

struct None {};

/// Why a value is undefined: the message an access to it fails with. Printing it gives nothing.
struct Missing {
  std::string message;
};

/// UTF-8 text. `safe` marks the result of the filters safe and escape: joined with other text, that text is
/// HTML-escaped.
struct Text {
  std::string bytes;
  bool safe = false;
};

enum class SequenceForm : uint8_t { kList, kTuple, kRange, kDictKeys, kDictValues, kDictItems };

/// An immutable list, tuple, range or dict view. depth: 1 + that of the deepest item, so that no recursion over a value
/// can run out of stack.
struct Sequence {
  std::vector<Value> items;
  SequenceForm form = SequenceForm::kList;
  int depth = 1;
  std::string label;  // how a range prints; "group": a pair of groupby, whose parts have the names grouper and list
};

class Dict;

/// Things with identity: namespaces, macros, the loop variable, generators. They live until the end of the render, in
/// the Runtime that made them.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual Out<std::string> print(Runtime& runtime, int depth) const;
  /// The attribute, or nothing (null) when there is none of that name.
  virtual Out<std::unique_ptr<Value>> attribute(Runtime& runtime, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Out<Value> call(Runtime& runtime, CallArguments& arguments);
  virtual bool iterable() const { return false; }
  virtual Out<std::vector<Value>> iterate(Runtime& runtime);
  /// Items, where Python's len() works; -1 where it does not.
  virtual int64_t length() const { return -1; }
  /// Drops every value it holds; breaks cycles when the render ends.
  virtual void clear() {}
};

/// One value of a template: Python's meaning, immutable, cheap to copy.
class Value {
 public:
  using Storage = std::variant<std::shared_ptr<const Missing>, None, bool, Integer, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;

  Value() = default;  // undefined, without a reason
  Value(None) : storage_(None{}) {}
  explicit Value(Storage storage) : storage_(std::move(storage)) {}

  static Value boolean(bool b) { return Value(Storage(std::in_place_type<bool>, b)); }
  static Value integer(Integer i) { return Value(Storage(std::in_place_type<Integer>, i)); }
  static Value real(double d) { return Value(Storage(std::in_place_type<double>, d)); }
  static Value string(std::string bytes, bool safe = false);
  static Value undefined(std::string message);
  static Value object(std::shared_ptr<Object> object) { return Value(Storage(std::move(object))); }

  bool is_undefined() const { return storage_.index() == 0; }
  bool is_none() const { return storage_.index() == 1; }
  bool is_bool() const { return storage_.index() == 2; }
  bool is_integer() const { return storage_.index() == 3; }
  bool is_real() const { return storage_.index() == 4; }
  bool is_string() const { return storage_.index() == 5; }
  bool is_sequence() const { return storage_.index() == 6; }
  bool is_dict() const { return storage_.index() == 7; }
  bool is_object() const { return storage_.index() == 8; }
  bool is_number() const { return is_bool() || is_integer() || is_real(); }
  bool is_integral() const { return is_bool() || is_integer(); }
  bool is_list() const { return is_sequence() && sequence().form == SequenceForm::kList; }
  bool is_tuple() const { return is_sequence() && sequence().form == SequenceForm::kTuple; }
  /// A sequence that can be indexed: not a dict view.
  bool is_indexable() const { return is_sequence() && sequence().form <= SequenceForm::kRange; }

  bool as_bool() const { return *std::get_if<bool>(&storage_); }
  /// Of an int or bool.
  Integer as_integer() const { return is_bool() ? Integer(as_bool()) : *std::get_if<Integer>(&storage_); }
  /// Of any number.
  double as_real() const { return is_real() ? *std::get_if<double>(&storage_) : static_cast<double>(as_integer()); }
  const std::string& bytes() const { return (*std::get_if<std::shared_ptr<const Text>>(&storage_))->bytes; }
  bool is_safe() const { return is_string() && (*std::get_if<std::shared_ptr<const Text>>(&storage_))->safe; }
  const Sequence& sequence() const { return **std::get_if<std::shared_ptr<const Sequence>>(&storage_); }
  const std::vector<Value>& items() const { return sequence().items; }
  const Dict& dict() const { return **std::get_if<std::shared_ptr<const Dict>>(&storage_); }
  const std::shared_ptr<Object>& object() const { return *std::get_if<std::shared_ptr<Object>>(&storage_); }
  template <class T>
  T* object_as() const {
    return is_object() ? dynamic_cast<T*>(object().get()) : nullptr;
  }
  /// Why it is undefined.
  std::string missing_message() const;

  /// Python's type name: 'str', 'list', 'NoneType', ...
  std::string_view type_name() const;
  /// Levels of containers in it; 0 for anything that is not one.
  int depth() const;
  /// The same thing in memory, or the same small scalar (Python's `is`).
  bool identical(const Value& other) const;

 private:
  Storage storage_;
};

struct KeyHash {
  size_t operator()(const Value& key) const;
};
struct KeyEqual {
  bool operator()(const Value& a, const Value& b) const;
};

/// A dict in insertion order. Keys: None, bool, int, float, str, and tuples of those; 1, 1.0 and True are one key.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  int depth() const { return depth_; }

  static bool can_be_key(const Value& key);
  /// Adds, or replaces the value and keeps the place.
  void set(Value key, Value value);

 private:
  std::vector<Entry> entries_;
  std::unordered_map<Value, size_t, KeyHash, KeyEqual> index_;  // only once there are many
  int depth_ = 1;
};

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A filter, test, method or global: self is the value on its left (None for globals).
using Native = Out<Value> (*)(Runtime& runtime, const Value& self, CallArguments& arguments);

struct NamedNative {
  std::string_view name;
  Native run;
};

}  // namespace tare::text::jinja
