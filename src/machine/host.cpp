#include "machine/host.h"

#include <emmintrin.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "base/size_text.h"
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

uint64_t read_benchmark_bytes(const Host& host) {
  return std::clamp(static_cast<uint64_t>(host.l3_bytes) * 4, uint64_t{256} << 20, uint64_t{512} << 20);
}

double measure_read_bytes_per_s(ThreadPool& pool, uint64_t buffer_bytes, double seconds) {
  struct alignas(64) Line {
    __m128i part[4];
  };
  const auto count = static_cast<int64_t>(buffer_bytes / sizeof(Line));
  const std::unique_ptr<Line[]> lines(new Line[static_cast<size_t>(count)]);
  constexpr int64_t kGrain = 1 << 14;  // 1 MiB
  // Each page is touched by a thread that will read it: on a machine with several memory nodes it then lies near.
  pool.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<void*>(lines.get() + begin), 1, static_cast<size_t>(end - begin) * sizeof(Line));
  });
  std::atomic<uint64_t> sink{0};
  double best = 0;
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (int pass = 0; pass < 2 || Clock::now() < until; ++pass) {
    const auto start = Clock::now();
    pool.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      // Four independent sums: the loads are then limited by memory, not by one chain of additions.
      __m128i sums[4] = {};
      for (int64_t i = begin; i < end; ++i) {
        for (int part = 0; part < 4; ++part)
          sums[part] = _mm_add_epi64(sums[part], lines[static_cast<size_t>(i)].part[part]);
      }
      const __m128i total = _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
      sink.fetch_add(static_cast<uint64_t>(_mm_cvtsi128_si64(total)), std::memory_order_relaxed);
    });
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(count) * sizeof(Line) / took);
  }
  return sink.load() == 0 ? 0 : best;
}

}  // namespace tare::machine
