#include "machine/host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "base/size_text.h"
#include "base/thread_pool.h"
#include "machine/isa.h"

namespace tare::machine {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t meminfo_bytes(std::string_view field) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) return std::strtoull(line.c_str() + field.size(), nullptr, 10) * 1024;
  }
  return 0;
}

// Linux lists the CPUs of one core as "0,4" or "0-1"; alone it is just "0".
bool core_is_shared(int cpu) {
  const std::string siblings =
      first_line(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  return siblings.find_first_of(",-") != std::string::npos;
}

int64_t cache_bytes(int name) {
  return std::max<int64_t>(0, ::sysconf(name));
}

}  // namespace

Host inspect_host() {
  Host host;
  host.cpu = cpu_model();
  host.owned_cpus = owned_cpu_count();
  host.online_cpus = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  host.hyperthreads = core_is_shared(0);
  host.memory_bytes = meminfo_bytes("MemTotal:");
  host.available_bytes = meminfo_bytes("MemAvailable:");
  const uint64_t swap_total = meminfo_bytes("SwapTotal:"), swap_free = meminfo_bytes("SwapFree:");
  host.swap_used_bytes = swap_total - std::min(swap_total, swap_free);
  const std::string limit_text = first_line("/sys/fs/cgroup/memory.max");
  if (!limit_text.empty() && limit_text != "max") {
    const uint64_t limit = std::strtoull(limit_text.c_str(), nullptr, 10);
    const uint64_t used = std::strtoull(first_line("/sys/fs/cgroup/memory.current").c_str(), nullptr, 10);
    if (limit > 0 && limit < host.memory_bytes) {
      host.memory_bytes = limit;
      host.available_bytes = std::min(host.available_bytes, limit - std::min(limit, used));
    }
  }
  host.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
  host.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  host.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  host.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  std::istringstream(first_line("/proc/loadavg")) >> host.load_average;
  return host;
}

std::vector<std::string> warnings_of(const Host& host) {
  std::vector<std::string> out;
  if (detect_isa() == Isa::kReference) {
    out.push_back("this CPU has no AVX2: only the plain reference kernels run here, which is slow");
  }
  if (host.owned_cpus < host.online_cpus) {
    out.push_back(fmt::format("this process may use {} of the machine's {} CPUs (affinity or container quota)",
                              host.owned_cpus, host.online_cpus));
  }
  if (host.hyperthreads) {
    out.push_back("CPUs share cores (hyper-threading): fewer threads than CPUs may be as fast, see --threads");
  }
  if (host.load_average > 0.5 * host.owned_cpus) {
    out.push_back(fmt::format("other work runs here (load average {:.1f}): timings will be off", host.load_average));
  }
  if (!host.governor.empty() && host.governor != "performance") {
    out.push_back(
        fmt::format("the CPU frequency governor is '{}': timings vary more than with 'performance'", host.governor));
  }
  if (host.swap_used_bytes > (uint64_t{64} << 20)) {
    out.push_back(fmt::format("{} are swapped out: weights that do not fit into memory make everything slow",
                              size_text(host.swap_used_bytes)));
  }
  if (host.available_bytes > 0 && host.available_bytes < (uint64_t{1} << 30)) {
    out.push_back(fmt::format("only {} of memory are available", size_text(host.available_bytes)));
  }
  return out;
}

}  // namespace tare::machine
