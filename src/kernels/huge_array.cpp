#include "kernels/huge_array.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace tare::kernels {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;
constexpr size_t kLine = 64;
constexpr size_t kRegionBytes = size_t{64} << 20;

/// The region that takes the next arrays; an array that does not fit begins a new one. An allocator, hence one for the
/// process.
struct Arena {
  std::mutex mutex;
  std::shared_ptr<HugeArray::Region> region;
  size_t used = 0;
};
Arena& arena() {
  static Arena one;
  return one;
}
}  // namespace

struct HugeArray::Region {
  void* mapped = nullptr;
  size_t mapped_bytes = 0;
  uint8_t* base = nullptr;
  size_t bytes = 0;

  ~Region() {
    if (mapped) ::munmap(mapped, mapped_bytes);
  }

  static std::shared_ptr<Region> map(size_t bytes) {
    auto region = std::make_shared<Region>();
    // Address space for aligning the start to a huge page; pages that are never touched cost nothing.
    region->mapped_bytes = bytes + kHugePage;
    void* mapped = ::mmap(nullptr, region->mapped_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    region->mapped = mapped;
    region->bytes = bytes;
    region->base =
        reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(mapped) + kHugePage - 1) / kHugePage * kHugePage);
    // A refusal costs speed, not correctness; the machine's setting is shown by `doctor`.
    (void)::madvise(region->base, bytes, MADV_HUGEPAGE);
    return region;
  }
};

HugeArray::~HugeArray() {
  if (!region_) return;
  // The region lives as long as its last array; whole pages of this one go back now.
  const auto begin = (reinterpret_cast<uintptr_t>(data_) + kSmallPage - 1) / kSmallPage * kSmallPage;
  const auto end = (reinterpret_cast<uintptr_t>(data_) + static_cast<size_t>(bytes_)) / kSmallPage * kSmallPage;
  if (end > begin) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

HugeArray::HugeArray(HugeArray&& other) noexcept {
  *this = std::move(other);
}

HugeArray& HugeArray::operator=(HugeArray&& other) noexcept {
  std::swap(region_, other.region_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Result<HugeArray> HugeArray::make(int64_t bytes) {
  HugeArray array;
  array.bytes_ = bytes;
  if (bytes <= 0) return array;
  const size_t rounded = (static_cast<size_t>(bytes) + kLine - 1) / kLine * kLine;
  Arena& shared = arena();
  const std::lock_guard lock(shared.mutex);
  if (!shared.region || shared.region->bytes - shared.used < rounded) {
    const size_t wanted = std::max(kRegionBytes, (rounded + kHugePage - 1) / kHugePage * kHugePage);
    std::shared_ptr<Region> region = Region::map(wanted);
    if (!region) {
      return does_not_fit("no memory for packed weights", {.found = fmt::format("{} bytes refused", rounded)});
    }
    shared.region = std::move(region);
    shared.used = 0;
  }
  array.region_ = shared.region;
  array.data_ = shared.region->base + shared.used;
  shared.used += rounded;
  return array;
}

}  // namespace tare::kernels
