#include "text/jinja/objects.h"

#include <fmt/format.h>

#include "base/result.h"

namespace tare::text::jinja {

namespace {

std::unique_ptr<Value> own(Value value) {
  return std::make_unique<Value>(std::move(value));
}

Out<Value> cycler_next(Runtime&, const Value& self, CallArguments&) {
  return self.object_as<Cycler>()->advance();
}
Out<Value> cycler_reset(Runtime&, const Value& self, CallArguments&) {
  self.object_as<Cycler>()->reset();
  return Value(None{});
}
Out<Value> loop_cycle(Runtime&, const Value& self, CallArguments& arguments) {
  if (arguments.positional.empty()) return type_fault("no items for cycling given");
  const auto index = static_cast<size_t>(std::max<int64_t>(self.object_as<Loop>()->index0(), 0));
  return arguments.positional[index % arguments.positional.size()];
}
Out<Value> loop_changed(Runtime& runtime, const Value& self, CallArguments& arguments) {
  TARE_ASSIGN(const bool changed, self.object_as<Loop>()->changed(runtime, std::move(arguments.positional)));
  return Value::boolean(changed);
}

std::unique_ptr<Value> bound(Native run, Object& self, std::string_view name) {
  return own(
      Value::object(std::make_shared<NativeFunction>(run, Value::object(self.shared_from_this()), std::string(name))));
}

}  // namespace

Out<std::string> Namespace::print(Runtime& runtime, int depth) const {
  std::string out = "<Namespace {";
  for (size_t i = 0; i < values_.size(); ++i) {
    if (i) out += ", ";
    out += repr_text(values_[i].first) + ": ";
    TARE_TRY(runtime.append_repr(out, values_[i].second, depth + 1));
  }
  return out + "}>";
}
Out<std::unique_ptr<Value>> Namespace::attribute(Runtime&, std::string_view name) {
  for (const auto& [key, value] : values_) {
    if (key == name) return own(value);
  }
  return std::unique_ptr<Value>();
}
void Namespace::set(std::string_view name, Value value) {
  for (auto& [key, old] : values_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(std::string(name), std::move(value));
}

Out<std::string> NativeFunction::print(Runtime&, int) const {
  return fmt::format("<function {}>", name_);
}
Out<Value> NativeFunction::call(Runtime& runtime, CallArguments& arguments) {
  return run_(runtime, self_, arguments);
}

Out<std::vector<Value>> Generator::iterate(Runtime& runtime) {
  TARE_TRY(runtime.charge(items_.size() - std::min(next_, items_.size())));
  std::vector<Value> rest(items_.begin() + static_cast<std::ptrdiff_t>(std::min(next_, items_.size())), items_.end());
  next_ = items_.size();
  if (pending_) return std::move(pending_);
  return rest;
}
Out<std::unique_ptr<Value>> Generator::next() {
  if (next_ < items_.size()) return own(items_[next_++]);
  if (pending_) return std::move(pending_);
  return std::unique_ptr<Value>();
}

Out<std::unique_ptr<Value>> Cycler::attribute(Runtime&, std::string_view name) {
  if (name == "current") return own(items_.empty() ? Value() : items_[at_]);
  if (name == "next") return bound(cycler_next, *this, name);
  if (name == "reset") return bound(cycler_reset, *this, name);
  return std::unique_ptr<Value>();
}
Value Cycler::advance() {
  if (items_.empty()) return Value();
  Value value = items_[at_];
  at_ = (at_ + 1) % items_.size();
  return value;
}

Out<Value> Joiner::call(Runtime&, CallArguments&) {
  if (used_) return separator_;
  used_ = true;
  return Value::string("");
}

Out<bool> Loop::has(size_t index) {
  while (items_.size() <= index && !exhausted_) {
    if (!pull_) return false;
    TARE_ASSIGN(const bool more, pull_(items_));
    exhausted_ = !more;
  }
  return index < items_.size();
}
Out<bool> Loop::advance() {
  TARE_ASSIGN(const bool more, has(static_cast<size_t>(index0_ + 1)));
  if (more) ++index0_;
  return more;
}
Out<int64_t> Loop::count() {
  for (;;) {
    TARE_ASSIGN(const bool more, has(items_.size()));
    if (!more) return static_cast<int64_t>(items_.size());
  }
}
void Loop::clear() {
  items_.clear();
  last_changed_.reset();
  finish();
}

Out<std::string> Loop::print(Runtime&, int) const {
  return fmt::format("<LoopContext {}>", index0_ + 1);
}

Out<std::unique_ptr<Value>> Loop::attribute(Runtime&, std::string_view name) {
  const auto integer = [](int64_t i) { return own(Value::integer(i)); };
  if (name == "index") return integer(index0_ + 1);
  if (name == "index0") return integer(index0_);
  if (name == "first") return own(Value::boolean(index0_ == 0));
  if (name == "depth") return integer(depth0_ + 1);
  if (name == "depth0") return integer(depth0_);
  if (name == "last" || name == "nextitem") {
    const auto next = static_cast<size_t>(index0_ + 1);
    TARE_ASSIGN(const bool more, has(next));
    if (name == "last") return own(Value::boolean(!more));
    return own(more ? items_[next] : Value::undefined("there is no next item"));
  }
  if (name == "previtem") {
    return own(index0_ > 0 ? items_[static_cast<size_t>(index0_ - 1)] : Value::undefined("there is no previous item"));
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    TARE_ASSIGN(const int64_t total, count());
    return integer(name == "length" ? total : name == "revindex" ? total - index0_ : total - index0_ - 1);
  }
  if (name == "cycle") return bound(loop_cycle, *this, name);
  if (name == "changed") return bound(loop_changed, *this, name);
  return std::unique_ptr<Value>();
}

Out<Value> Loop::call(Runtime&, CallArguments& arguments) {
  if (!recurse_) return type_fault("the loop must have the 'recursive' marker to be called");
  if (arguments.positional.size() != 1 || !arguments.named.empty()) return type_fault("loop() takes one argument");
  return recurse_(arguments.positional[0], depth0_ + 1);
}

Out<bool> Loop::changed(Runtime& runtime, std::vector<Value> values) {
  bool same = last_changed_ && last_changed_->size() == values.size();
  for (size_t i = 0; same && i < values.size(); ++i) {
    TARE_ASSIGN(same, runtime.equal((*last_changed_)[i], values[i]));
  }
  if (!same) last_changed_ = std::move(values);
  return !same;
}

}  // namespace tare::text::jinja
