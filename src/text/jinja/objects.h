#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime.h"

namespace tare::text::jinja {

/// namespace(...): the one thing a template may change.
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  Out<std::string> print(Runtime& runtime, int depth) const override;
  Out<std::unique_ptr<Value>> attribute(Runtime& runtime, std::string_view name) override;
  void clear() override { values_.clear(); }
  void set(std::string_view name, Value value);

 private:
  std::vector<std::pair<std::string, Value>> values_;
};

/// A method taken from its object, or a global function (self None).
class NativeFunction : public Object {
 public:
  NativeFunction(Native run, Value self, std::string name)
      : run_(run), self_(std::move(self)), name_(std::move(name)) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  Out<std::string> print(Runtime& runtime, int depth) const override;
  bool callable() const override { return true; }
  Out<Value> call(Runtime& runtime, CallArguments& arguments) override;

 private:
  Native run_;
  Value self_;
  std::string name_;
};

/// What map, select and their like give: can be walked once. A fault in the middle shows only when the walk gets there.
class Generator : public Object {
 public:
  Generator(std::vector<Value> items, FaultPtr pending) : items_(std::move(items)), pending_(std::move(pending)) {}
  std::string_view type_name() const override { return "generator"; }
  bool iterable() const override { return true; }
  Out<std::vector<Value>> iterate(Runtime& runtime) override;
  /// The next item, or null at the end.
  Out<std::unique_ptr<Value>> next();
  void clear() override { items_.clear(); }

 private:
  std::vector<Value> items_;
  FaultPtr pending_;
  size_t next_ = 0;
};

class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  Out<std::unique_ptr<Value>> attribute(Runtime& runtime, std::string_view name) override;
  void clear() override { items_.clear(); }

  Value advance();
  void reset() { at_ = 0; }

 private:
  std::vector<Value> items_;
  size_t at_ = 0;
};

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Out<Value> call(Runtime& runtime, CallArguments& arguments) override;

 private:
  Value separator_;
  bool used_ = false;
};

/// The `loop` variable. Items behind the current one are drawn only when asked for, because the filter of the loop may
/// depend on what its body does.
class Loop : public Object {
 public:
  /// pull appends the next item to `items`, or returns false at the end.
  using Pull = std::function<Out<bool>(std::vector<Value>& items)>;
  using Recurse = std::function<Out<Value>(const Value& iterable, int depth0)>;

  Loop(Pull pull, Recurse recurse, int depth0)
      : pull_(std::move(pull)), recurse_(std::move(recurse)), depth0_(depth0) {}
  std::string_view type_name() const override { return "LoopContext"; }
  Out<std::string> print(Runtime& runtime, int depth) const override;
  Out<std::unique_ptr<Value>> attribute(Runtime& runtime, std::string_view name) override;
  bool callable() const override { return true; }
  Out<Value> call(Runtime& runtime, CallArguments& arguments) override;
  bool iterable() const override { return true; }
  void clear() override;

  /// Moves to the next item; false at the end.
  Out<bool> advance();
  const Value& current() const { return items_[static_cast<size_t>(index0_)]; }
  int64_t index0() const { return index0_; }
  Out<bool> changed(Runtime& runtime, std::vector<Value> values);
  /// After the loop nothing can be drawn any more.
  void finish() { pull_ = nullptr, recurse_ = nullptr; }

 private:
  Out<bool> has(size_t index);
  Out<int64_t> count();

  std::vector<Value> items_;
  Pull pull_;
  Recurse recurse_;
  int depth0_ = 0;
  int64_t index0_ = -1;
  bool exhausted_ = false;
  std::optional<std::vector<Value>> last_changed_;
};

}  // namespace tare::text::jinja
