#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace tare::io {

namespace {

// Deleter of a mapping. Its type is also how `advise` tells a mapping from heap memory, where dropping pages would
// destroy content.
struct Unmap {
  size_t size = 0;
  void operator()(const void* base) const { ::munmap(const_cast<void*>(base), size); }
};

Error from_errno(std::string what, const std::string& path) {
  return io_error(std::move(what), {.where = path, .found = std::strerror(errno)});
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Result<Buffer> map_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. It means nothing for regular files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return from_errno("cannot open file", path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    Error error = from_errno("cannot stat file", path);
    ::close(fd);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_input("not a file", {.where = path, .expected = "a regular file", .found = kind_of(info.st_mode)});
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    ::close(fd);
    return Buffer();
  }
  void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  Error error;
  if (base == MAP_FAILED) error = from_errno("cannot map file", path);
  ::close(fd);  // the mapping keeps the file
  if (base == MAP_FAILED) return error;
  return Buffer(std::shared_ptr<const void>(base, Unmap{size}), static_cast<const std::byte*>(base), size);
}

void advise(const Buffer& range, Advice advice) {
  if (range.empty() || !std::get_deleter<Unmap>(range.owner())) return;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  uintptr_t begin = reinterpret_cast<uintptr_t>(range.data());
  uintptr_t end = begin + range.size();
  if (advice == Advice::kWillNeed) {
    begin -= begin % page;
  } else {
    begin = (begin + page - 1) / page * page;  // a page shared with a neighbour stays as it is
    // The last page of the file belongs to its last range whole: past the end there is no neighbour.
    const std::byte* const base = static_cast<const std::byte*>(range.owner().get());
    const bool at_end = range.data() + range.size() == base + std::get_deleter<Unmap>(range.owner())->size;
    if (!at_end) end -= end % page;
  }
  if (begin >= end) return;
  int flag = MADV_WILLNEED;
  switch (advice) {
    case Advice::kSequential:
      flag = MADV_SEQUENTIAL;
      break;
    case Advice::kRandom:
      flag = MADV_RANDOM;
      break;
    case Advice::kWillNeed:
      break;
    case Advice::kDrop:
      flag = MADV_DONTNEED;
      break;
  }
  ::madvise(reinterpret_cast<void*>(begin), end - begin, flag);  // a hint: failure changes nothing
}

}  // namespace tare::io
