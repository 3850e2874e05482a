#pragma once

#include <cassert>
#include <memory>
#include <string>
#include <utility>

namespace tare::text::jinja {

/// What went wrong inside a template. Line 0 means: not known yet (the statement or expression around it fills it in).
enum class FaultKind {
  kSyntax,    // the template does not parse, or names a filter that does not exist
  kRaised,    // the template called raise_exception
  kTemplate,  // undefined value, wrong type, unknown name, forbidden access
  kLimit,     // steps, depth or size over the limit
};

struct Fault {
  FaultKind kind = FaultKind::kTemplate;
  std::string message;
  int line = 0;
};

using FaultPtr = std::unique_ptr<Fault>;

FaultPtr fault(FaultKind kind, std::string message, int line = 0);
FaultPtr type_fault(std::string message);
FaultPtr limit_fault(std::string message);

/// A value or a fault; works with TARE_TRY and TARE_ASSIGN. One pointer larger than the value, because every step of
/// the evaluator returns one.
template <class T>
class [[nodiscard]] Out {
 public:
  Out(T value) : value_(std::move(value)) {}
  Out(FaultPtr fault) : fault_(std::move(fault)) { assert(fault_); }

  bool ok() const { return fault_ == nullptr; }
  T& value() & { return value_; }
  const T& value() const& { return value_; }
  T&& value() && { return std::move(value_); }
  T& operator*() & { return value_; }
  T&& operator*() && { return std::move(value_); }
  T* operator->() { return &value_; }
  const Fault& fault() const { return *fault_; }
  FaultPtr&& error() && { return std::move(fault_); }
  FaultPtr& error() & { return fault_; }

 private:
  T value_{};
  FaultPtr fault_;
};

template <>
class [[nodiscard]] Out<void> {
 public:
  Out() = default;
  Out(FaultPtr fault) : fault_(std::move(fault)) { assert(fault_); }

  bool ok() const { return fault_ == nullptr; }
  const Fault& fault() const { return *fault_; }
  FaultPtr&& error() && { return std::move(fault_); }
  FaultPtr& error() & { return fault_; }

 private:
  FaultPtr fault_;
};

}  // namespace tare::text::jinja
