#include "base/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include "base/size_text.h"

namespace tare {

struct MemoryBudget::Reservation::Ledger {
  mutable std::mutex mutex;
  std::optional<uint64_t> limit;
  uint64_t used = 0;
  uint64_t peak = 0;
  std::map<std::string, uint64_t> holders;

  std::vector<Holder> sorted() const {  // with the mutex held
    std::vector<Holder> out;
    for (const auto& [name, bytes] : holders) {
      if (bytes > 0) out.push_back({name, bytes});
    }
    std::stable_sort(out.begin(), out.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
    return out;
  }

  Status take(const std::string& name, uint64_t bytes) {
    const std::lock_guard lock(mutex);
    if (limit && (used > *limit || bytes > *limit - used)) {
      std::string held;
      for (const Holder& holder : sorted()) {
        held += fmt::format("{}{} {}", held.empty() ? "" : ", ", holder.name, size_text(holder.bytes));
      }
      const uint64_t left = used > *limit ? 0 : *limit - used;
      return does_not_fit(
          "over the memory budget",
          {.where = name,
           .expected = fmt::format("at most {} ({} bytes of {} are left)", size_text(left), left, *limit),
           .found = fmt::format("{} ({} bytes)", size_text(bytes), bytes),
           .hint = held.empty() ? "raise --memory" : "held: " + held + "; raise --memory"});
    }
    used += bytes;
    peak = std::max(peak, used);
    holders[name] += bytes;
    return {};
  }

  void give(const std::string& name, uint64_t bytes) {
    const std::lock_guard lock(mutex);
    used -= bytes;
    holders[name] -= bytes;
  }
};

MemoryBudget::MemoryBudget(std::optional<uint64_t> limit_bytes) : ledger_(std::make_shared<Reservation::Ledger>()) {
  ledger_->limit = limit_bytes;
}

MemoryBudget::Reservation::Reservation(std::shared_ptr<Ledger> ledger, std::string name, uint64_t bytes)
    : ledger_(std::move(ledger)), name_(std::move(name)), bytes_(bytes) {}

MemoryBudget::Reservation::Reservation(Reservation&& other) noexcept
    : ledger_(std::move(other.ledger_)), name_(std::move(other.name_)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryBudget::Reservation& MemoryBudget::Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    ledger_ = std::move(other.ledger_);
    name_ = std::move(other.name_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MemoryBudget::Reservation::~Reservation() {
  release();
}

Status MemoryBudget::Reservation::resize(uint64_t bytes) {
  if (!ledger_) return internal_error("resize of an empty reservation");
  if (bytes > bytes_) {
    TARE_TRY(ledger_->take(name_, bytes - bytes_));
  } else {
    ledger_->give(name_, bytes_ - bytes);
  }
  bytes_ = bytes;
  return {};
}

void MemoryBudget::Reservation::release() {
  if (ledger_) ledger_->give(name_, bytes_);
  ledger_.reset();
  bytes_ = 0;
}

Result<MemoryBudget::Reservation> MemoryBudget::reserve(std::string_view name, uint64_t bytes) {
  std::string owned_name(name);
  TARE_TRY(ledger_->take(owned_name, bytes));
  return Reservation(ledger_, std::move(owned_name), bytes);
}

std::optional<uint64_t> MemoryBudget::limit_bytes() const {
  return ledger_->limit;
}

uint64_t MemoryBudget::used_bytes() const {
  const std::lock_guard lock(ledger_->mutex);
  return ledger_->used;
}

uint64_t MemoryBudget::peak_bytes() const {
  const std::lock_guard lock(ledger_->mutex);
  return ledger_->peak;
}

std::optional<uint64_t> MemoryBudget::available_bytes() const {
  const std::lock_guard lock(ledger_->mutex);
  if (!ledger_->limit) return std::nullopt;
  return ledger_->used > *ledger_->limit ? 0 : *ledger_->limit - ledger_->used;
}

std::vector<MemoryBudget::Holder> MemoryBudget::holders() const {
  const std::lock_guard lock(ledger_->mutex);
  return ledger_->sorted();
}

namespace {

uint64_t status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return std::strtoull(line.c_str() + field.size(), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

uint64_t current_rss_bytes() {
  return status_bytes("VmRSS:");
}

uint64_t peak_rss_bytes() {
  return status_bytes("VmHWM:");
}

}  // namespace tare
