#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare {

/// The hard limit of --memory. Whoever is about to allocate something large asks first, by name; the sum of what was
/// granted never exceeds the limit. Without a limit everything is granted and only counted. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::optional<uint64_t> limit_bytes = std::nullopt);

  /// Holds granted bytes; gives them back when it goes. Move-only. It may outlive the MemoryBudget object.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();

    uint64_t bytes() const { return bytes_; }
    /// Changes the amount held. Growing can be refused (kDoesNotFit), which leaves it as it was.
    Status resize(uint64_t bytes);
    void release();

   private:
    friend class MemoryBudget;
    struct Ledger;
    Reservation(std::shared_ptr<Ledger> ledger, std::string name, uint64_t bytes);

    std::shared_ptr<Ledger> ledger_;
    std::string name_;
    uint64_t bytes_ = 0;
  };

  /// Errors: kDoesNotFit, with the numbers and the largest holders.
  Result<Reservation> reserve(std::string_view name, uint64_t bytes);

  std::optional<uint64_t> limit_bytes() const;
  uint64_t used_bytes() const;
  uint64_t peak_bytes() const;
  /// What is left; nothing when there is no limit.
  std::optional<uint64_t> available_bytes() const;

  struct Holder {
    std::string name;
    uint64_t bytes = 0;
  };
  /// Largest first; reservations of one name are summed.
  std::vector<Holder> holders() const;

 private:
  std::shared_ptr<Reservation::Ledger> ledger_;
};

/// Resident memory of this process in bytes, mapped file pages included (/proc/self/status). 0 when unknown.
uint64_t current_rss_bytes();
/// The highest value so far.
uint64_t peak_rss_bytes();

}  // namespace tare
