#include "text/jinja/value.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>

namespace tare::text::jinja {

namespace {
constexpr size_t kIndexFrom = 12;  // below, a walk over the entries is as quick as hashing

bool scalar_key(const Value& key) {
  return key.is_none() || key.is_number() || key.is_string() || key.is_undefined();
}
}  // namespace

FaultPtr fault(FaultKind kind, std::string message, int line) {
  auto made = std::make_unique<Fault>();
  made->kind = kind;
  made->message = std::move(message);
  made->line = line;
  return made;
}
FaultPtr type_fault(std::string message) {
  return fault(FaultKind::kTemplate, std::move(message));
}
FaultPtr limit_fault(std::string message) {
  return fault(FaultKind::kLimit, std::move(message));
}

Value Value::string(std::string bytes, bool safe) {
  return Value(Storage(std::shared_ptr<const Text>(std::make_shared<Text>(Text{std::move(bytes), safe}))));
}

Value Value::undefined(std::string message) {
  return Value(Storage(std::shared_ptr<const Missing>(std::make_shared<Missing>(Missing{std::move(message)}))));
}

std::string Value::missing_message() const {
  const auto* missing = std::get_if<std::shared_ptr<const Missing>>(&storage_);
  return missing && *missing ? (*missing)->message : "value is undefined";
}

std::string_view Value::type_name() const {
  switch (storage_.index()) {
    case 0:
      return "Undefined";
    case 1:
      return "NoneType";
    case 2:
      return "bool";
    case 3:
      return "int";
    case 4:
      return "float";
    case 5:
      return is_safe() ? "Markup" : "str";
    case 6: {
      constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<size_t>(sequence().form)];
    }
    case 7:
      return "dict";
    default:
      return object()->type_name();
  }
}

int Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is_dict()) return dict().depth();
  return 0;
}

bool Value::identical(const Value& other) const {
  if (storage_.index() != other.storage_.index()) return false;
  switch (storage_.index()) {
    case 0:
      return std::get<0>(storage_) == std::get<0>(other.storage_);
    case 1:
      return true;
    case 2:
      return as_bool() == other.as_bool();
    case 3:
      return as_integer() == other.as_integer();
    case 4:
      return as_real() == other.as_real();
    case 5:
      return std::get<5>(storage_) == std::get<5>(other.storage_) || bytes() == other.bytes();
    case 6:
      return std::get<6>(storage_) == std::get<6>(other.storage_);
    case 7:
      return std::get<7>(storage_) == std::get<7>(other.storage_);
    default:
      return std::get<8>(storage_) == std::get<8>(other.storage_);
  }
}

size_t KeyHash::operator()(const Value& key) const {
  if (key.is_string()) return std::hash<std::string_view>{}(key.bytes());
  if (key.is_number()) return std::hash<double>{}(key.as_real());
  if (key.is_sequence()) {
    size_t hash = 17;
    for (const Value& item : key.items()) hash = hash * 1000003 + (*this)(item);
    return hash;
  }
  return 7;
}

bool KeyEqual::operator()(const Value& a, const Value& b) const {
  if (a.is_string() && b.is_string()) return a.bytes() == b.bytes();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.is_none() && b.is_none()) return true;
  if (a.is_undefined() && b.is_undefined()) return true;
  if (a.is_tuple() && b.is_tuple()) {
    if (a.items().size() != b.items().size()) return false;
    for (size_t i = 0; i < a.items().size(); ++i) {
      if (!(*this)(a.items()[i], b.items()[i])) return false;
    }
    return true;
  }
  return false;
}

bool Dict::can_be_key(const Value& key) {
  if (scalar_key(key)) return true;
  if (!key.is_tuple()) return false;
  for (const Value& item : key.items()) {
    if (!scalar_key(item)) return false;  // tuples in tuples: legal in Python, refused here
  }
  return true;
}

const Value* Dict::find(const Value& key) const {
  if (!index_.empty()) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries_[found->second].second;
  }
  const KeyEqual equal;
  for (const Entry& entry : entries_) {
    if (equal(entry.first, key)) return &entry.second;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (!index_.empty()) return find(Value::string(std::string(key)));
  for (const Entry& entry : entries_) {
    if (entry.first.is_string() && entry.first.bytes() == key) return &entry.second;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) {
    index_.emplace(entries_.back().first, entries_.size() - 1);
  } else if (entries_.size() > kIndexFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].first, i);
  }
}

Out<std::string> Object::print(Runtime&, int) const {
  return fmt::format("<{} object>", type_name());
}
Out<std::unique_ptr<Value>> Object::attribute(Runtime&, std::string_view) {
  return std::unique_ptr<Value>();
}
Out<Value> Object::call(Runtime&, CallArguments&) {
  return type_fault(fmt::format("'{}' object is not callable", type_name()));
}
Out<std::vector<Value>> Object::iterate(Runtime&) {
  return type_fault(fmt::format("'{}' object is not iterable", type_name()));
}

}  // namespace tare::text::jinja
