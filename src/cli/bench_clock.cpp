#include "cli/bench_clock.h"

#include <fmt/format.h>

namespace tare::cli {

Result<kernels::BenchClock> bench_clock(const Context& context, std::string_view name) {
  if (name == "wall") return kernels::BenchClock::kWall;
  if (name != "cpu") {
    return invalid_input("unknown clock",
                         {.where = "--clock", .expected = "wall or cpu", .found = fmt::format("'{}'", name)});
  }
  if (context.threads() != 1) {
    return invalid_input("CPU time is that of one thread", {.where = "--clock cpu", .hint = "add --threads 1"});
  }
  return kernels::BenchClock::kCpu;
}

}  // namespace tare::cli
