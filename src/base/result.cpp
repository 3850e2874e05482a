#include "base/result.h"

#include <fmt/format.h>

namespace tare {

std::string Error::message() const {
  std::string text = what;
  if (!where.empty()) text += fmt::format(" ({})", where);
  if (!expected.empty()) text += fmt::format(": expected {}", expected);
  if (!found.empty()) text += fmt::format("{}found {}", expected.empty() ? ": " : ", ", found);
  if (!hint.empty()) text += fmt::format("; {}", hint);
  // One line, whatever a hostile file put into a name.
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kGateFailed:
      return 1;
    case ErrorKind::kDoesNotFit:
      return 3;
    case ErrorKind::kInterrupted:
      return 4;
    case ErrorKind::kInvalidInput:
    case ErrorKind::kUnsupported:
    case ErrorKind::kNotFinite:
    case ErrorKind::kIo:
    case ErrorKind::kInternal:
      return 2;
  }
  return 2;
}

Error make_error(ErrorKind kind, std::string what, ErrorDetail detail) {
  return Error{.kind = kind,
               .what = std::move(what),
               .where = std::move(detail.where),
               .expected = std::move(detail.expected),
               .found = std::move(detail.found),
               .hint = std::move(detail.hint)};
}

Error invalid_input(std::string what, ErrorDetail detail) {
  return make_error(ErrorKind::kInvalidInput, std::move(what), std::move(detail));
}
Error unsupported(std::string what, ErrorDetail detail) {
  return make_error(ErrorKind::kUnsupported, std::move(what), std::move(detail));
}
Error io_error(std::string what, ErrorDetail detail) {
  return make_error(ErrorKind::kIo, std::move(what), std::move(detail));
}
Error does_not_fit(std::string what, ErrorDetail detail) {
  return make_error(ErrorKind::kDoesNotFit, std::move(what), std::move(detail));
}
Error internal_error(std::string what, ErrorDetail detail) {
  return make_error(ErrorKind::kInternal, std::move(what), std::move(detail));
}

}  // namespace tare
