#include "kernels/huge_array.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

namespace tare::kernels {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;
}  // namespace

HugeArray::~HugeArray() {
  if (mapped_) ::munmap(mapped_, mapped_bytes_);
}

HugeArray::HugeArray(HugeArray&& other) noexcept {
  *this = std::move(other);
}

HugeArray& HugeArray::operator=(HugeArray&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Result<HugeArray> HugeArray::make(int64_t bytes) {
  HugeArray array;
  array.bytes_ = bytes;
  if (bytes <= 0) return array;
  const size_t rounded = (static_cast<size_t>(bytes) + kSmallPage - 1) / kSmallPage * kSmallPage;
  // Address space for aligning the start to a huge page; pages that are never touched cost nothing.
  const size_t slack = rounded >= kHugePage ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, rounded + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return does_not_fit("no memory for packed weights", {.found = fmt::format("{} bytes refused", rounded)});
  }
  array.mapped_ = mapped;
  array.mapped_bytes_ = rounded + slack;
  auto address = reinterpret_cast<uintptr_t>(mapped);
  if (slack != 0) {
    address = (address + kHugePage - 1) / kHugePage * kHugePage;
    // A refusal costs speed, not correctness; the machine's setting is shown by `doctor`.
    (void)::madvise(reinterpret_cast<void*>(address), rounded / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  array.data_ = reinterpret_cast<uint8_t*>(address);
  return array;
}

}  // namespace tare::kernels
