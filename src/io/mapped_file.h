#pragma once

#include <string>

#include "base/buffer.h"
#include "base/result.h"

namespace tare::io {

/// How a range of a mapped file is about to be used.
enum class Advice {
  kSequential,  // read once from front to back
  kRandom,      // read here and there: no read-ahead
  kWillNeed,    // start reading it now
  kDrop,        // used up: give its pages back (reading it again is legal and reads the file again)
};

/// Maps a whole regular file read-only. The buffer and every slice of it keep the mapping alive; an empty file gives an
/// empty buffer. A file that shrinks while it is mapped ends the process (SIGBUS): writers of tare replace files, they
/// never cut them.
/// Errors: kIo (cannot open or map), kInvalidInput (not a regular file).
Result<Buffer> map_file(const std::string& path);

/// Passes advice for the pages that lie wholly inside the buffer (for kWillNeed: all it touches). Does nothing for
/// memory that is not a mapped file, so a caller need not know which of the two it holds.
void advise(const Buffer& range, Advice advice);

}  // namespace tare::io
