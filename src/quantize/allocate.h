#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace tare::quantize {

/// One way to store a unit (a matrix, or matrices that must look alike).
struct AllocationOption {
  int64_t bytes = 0;  // >= 0
  double cost = 0;    // finite, >= 0; costs of units add up
};

struct Allocation {
  std::vector<size_t> choice;  // index of an option, for each unit
  int64_t bytes = 0;           // of all choices
  double cost = 0;
};

/// Chooses one option a unit so that the bytes stay within `budget` and the cost is low: every unit starts at its
/// smallest option; then the steps along the lower convex hulls of bytes against cost are taken in the order of cost
/// saved a byte, which is the best choice for every budget that a whole number of steps uses up (Lagrangian
/// relaxation; Everett 1963); what is left of the budget goes to whatever single change still saves most, until no
/// change of one unit that lowers the cost fits. Ties go to the unit, then to the option, that stands first: the
/// result depends on nothing but the input.
/// Errors: kInvalidInput: a unit without options; the smallest options together are over the budget (both named).
Result<Allocation> allocate(const std::vector<std::vector<AllocationOption>>& units, int64_t budget);

}  // namespace tare::quantize
