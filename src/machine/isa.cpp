#include "machine/isa.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

namespace tare::machine {

namespace {

struct IsaRow {
  Isa isa;
  std::string_view name;
};
constexpr IsaRow kIsas[] = {{Isa::kReference, "reference"}, {Isa::kAvx2, "avx2"}, {Isa::kAvx512Vnni, "avx512vnni"}};

int64_t cache_bytes(int name, int64_t fallback) {
  const long size = ::sysconf(name);
  return size > 0 ? size : fallback;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const IsaRow& row : kIsas) {
    if (row.isa == isa) return row.name;
  }
  return "?";
}

Result<Isa> parse_isa(std::string_view name) {
  std::string names;
  for (const IsaRow& row : kIsas) {
    if (row.name == name) return row.isa;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  return invalid_input("unknown instruction set",
                       {.where = "--isa", .expected = names, .found = fmt::format("'{}'", name)});
}

Isa detect_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) {
    return Isa::kReference;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? Isa::kAvx512Vnni : Isa::kAvx2;
}

Result<Capabilities> capabilities(Isa highest) {
  const Isa found = detect_isa();
  if (highest > found) {
    return unsupported(
        "this CPU lacks the instruction set",
        {.where = "--isa", .expected = std::string(isa_name(highest)), .found = std::string(isa_name(found))});
  }
  Capabilities caps = capabilities();
  caps.isa = highest;
  if (highest < Isa::kAvx512Vnni) caps.avx512_bf16 = false;
  return caps;
}

Capabilities capabilities() {
  Capabilities caps;
  caps.isa = detect_isa();
  caps.avx512_bf16 = caps.isa == Isa::kAvx512Vnni && __builtin_cpu_supports("avx512bf16");
  caps.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, caps.l1d_bytes);
  caps.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, caps.l2_bytes);
  return caps;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace tare::machine
