#pragma once

#include <string_view>

#include "base/result.h"
#include "cli/command.h"
#include "kernels/peaks.h"

namespace tare::cli {

/// --clock of the benchmarks. Errors: no such clock; CPU time of more than one thread (threads that wait count too).
Result<kernels::BenchClock> bench_clock(const Context& context, std::string_view name);

}  // namespace tare::cli
