#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tare::machine {

/// What this process may use of the machine, in plain facts. Unknown numbers are 0.
struct Host {
  std::string cpu;
  int owned_cpus = 1;            // affinity mask and cgroup quota
  int online_cpus = 1;           // of the whole machine
  bool hyperthreads = false;     // some owned CPUs share a core
  uint64_t memory_bytes = 0;     // physical, or the cgroup's limit if that is lower
  uint64_t available_bytes = 0;  // free for use now
  uint64_t swap_used_bytes = 0;
  int64_t l1d_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;
  std::string governor;     // CPU frequency governor, empty when unknown
  double load_average = 0;  // runnable processes, last minute
};

Host inspect_host();

/// What makes measurements or runs on this host worse than they could be, one sentence each.
std::vector<std::string> warnings_of(const Host& host);

}  // namespace tare::machine
