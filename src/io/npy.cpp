#include "io/npy.h"

#include <fmt/format.h>

#include "base/checked.h"

namespace tare::io {

Result<NpyWriter> NpyWriter::create(const std::string& path, int64_t rows, int64_t columns) {
  if (rows < 0 || columns < 0) return internal_error("negative array shape", {.where = path});
  const auto count = checked_mul(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns));
  if (!count) return internal_error("array too large", {.where = path});
  // |\x93NUMPY|1|0|u16 length|text, spaces, newline|, the whole a multiple of 64. Source: numpy/lib/format.py.
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPrefix = 10;
  while ((kPrefix + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string header = std::string("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xFF);
  header += static_cast<char>(text.size() >> 8);
  TARE_ASSIGN(OutputFile file, OutputFile::create(path));
  TARE_TRY(file.write(header + text));
  return NpyWriter(std::move(file), *count);
}

Status NpyWriter::append(std::span<const float> values) {
  if (values.size() > left_) return internal_error("more values than the array declares");
  left_ -= values.size();
  return file_.write(std::as_bytes(values));
}

Result<WrittenFile> NpyWriter::finish() {
  if (left_ != 0) return internal_error("array not complete", {.found = fmt::format("{} values missing", left_)});
  return file_.finish();
}

}  // namespace tare::io
