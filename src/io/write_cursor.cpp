#include "io/write_cursor.h"

#include <fmt/format.h>

#include "io/names.h"

namespace tare::io {

Result<WriteCursor::Place> WriteCursor::next(std::string_view name, uint64_t bytes) {
  while (current_ < plan_.size() && done_ == plan_[current_].bytes && plan_[current_].name != name) {
    ++current_;
    done_ = 0;
  }
  if (current_ == plan_.size() || plan_[current_].name != name) {
    return internal_error("tensor written out of order",
                          {.expected = current_ == plan_.size() ? "no more tensors" : printable(plan_[current_].name),
                           .found = printable(name)});
  }
  const PlannedTensor& t = plan_[current_];
  if (bytes > t.bytes - done_) {
    return internal_error("tensor longer than declared", {.where = printable(name),
                                                          .expected = fmt::format("{} bytes", t.bytes),
                                                          .found = fmt::format("{}", done_ + bytes)});
  }
  const Place place{t.file, t.offset + done_};
  done_ += bytes;
  return place;
}

Status WriteCursor::complete() const {
  for (size_t i = current_; i < plan_.size(); ++i) {
    const uint64_t done = i == current_ ? done_ : 0;
    if (done != plan_[i].bytes) {
      return internal_error("tensor not complete", {.where = printable(plan_[i].name),
                                                    .expected = fmt::format("{} bytes", plan_[i].bytes),
                                                    .found = fmt::format("{}", done)});
    }
  }
  return {};
}

}  // namespace tare::io
