#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tare {

/// Why something could not be done. Each kind has one exit code (docs/cli.md): see `exit_code`.
enum class ErrorKind {
  kInvalidInput,  // a file, flag or request that is wrong
  kUnsupported,   // well-formed, but tare does not do this
  kNotFinite,     // NaN or inf where a number was needed
  kIo,            // the operating system refused
  kDoesNotFit,    // over the memory budget
  kGateFailed,    // done, but the result fails a check
  kInterrupted,   // stopped by the user; can be resumed
  kInternal,      // our own mistake
};

/// One failure, told in one line: WHAT (WHERE): expected X, found Y; TRY. Empty parts are left out.
struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;
  std::string where;  // file, tensor, offset, flag
  std::string expected;
  std::string found;
  std::string hint;  // what to try

  std::string message() const;
};

/// Process exit code of an error kind: 1 gate, 2 input or usage, 3 does not fit, 4 interrupted.
int exit_code(ErrorKind kind);

/// The details of an error, for designated initializers: invalid_input("bad header", {.where = path, .found = "x"}).
struct ErrorDetail {
  std::string where;
  std::string expected;
  std::string found;
  std::string hint;
};

Error make_error(ErrorKind kind, std::string what, ErrorDetail detail = {});
Error invalid_input(std::string what, ErrorDetail detail = {});
Error unsupported(std::string what, ErrorDetail detail = {});
Error io_error(std::string what, ErrorDetail detail = {});
Error does_not_fit(std::string what, ErrorDetail detail = {});
Error internal_error(std::string what, ErrorDetail detail = {});

/// A value or an Error. Nothing that reads files, flags or requests throws: it returns one of these.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    assert(ok());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    assert(!ok());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    assert(!ok());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    assert(!ok());
    return *error_;
  }
  Error&& error() && {
    assert(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace tare

// Leave the function with the error of `expr`, if it has one. Works in functions that return any Result.
#define TARE_TRY(expr)                                              \
  do {                                                              \
    auto tare_status_ = (expr);                                     \
    if (!tare_status_.ok()) return std::move(tare_status_).error(); \
  } while (false)

// Declare `decl` from the value of `expr`, or leave the function with its error.
#define TARE_CONCAT_INNER(a, b) a##b
#define TARE_CONCAT(a, b) TARE_CONCAT_INNER(a, b)
#define TARE_ASSIGN_IMPL(decl, expr, tmp)       \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()
#define TARE_ASSIGN(decl, expr) TARE_ASSIGN_IMPL(decl, expr, TARE_CONCAT(tare_result_, __LINE__))
