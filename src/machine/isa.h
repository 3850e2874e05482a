#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tare::machine {

/// Instruction-set levels that kernels are written for, lowest first. A level includes all below it.
enum class Isa { kReference, kAvx2, kAvx512Vnni };

std::string_view isa_name(Isa isa);
Result<Isa> parse_isa(std::string_view name);

/// The highest level this CPU (and operating system) supports.
Isa detect_isa();

/// What a kernel may use: the level allowed (detected, or lowered by --isa) and its caches in bytes.
struct Capabilities {
  Isa isa = Isa::kReference;
  bool avx512_bf16 = false;
  int64_t l1d_bytes = 32 << 10;
  int64_t l2_bytes = 1 << 20;
};

/// This machine. Errors: `highest` is above what the machine has.
Result<Capabilities> capabilities(Isa highest);
Capabilities capabilities();

/// "Intel(R) Xeon(R) ..." from /proc/cpuinfo.
std::string cpu_model();

}  // namespace tare::machine
