#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "base/size_text.h"
#include "cli/command.h"
#include "kernels/peaks.h"
#include "machine/host.h"

namespace tare::cli {

namespace {

Status doctor(Context& context) {
  const machine::Host host = machine::inspect_host();
  const machine::Capabilities& caps = context.capabilities();
  const std::vector<std::string> warnings = machine::warnings_of(host);
  double read_gbps = 0;
  {
    constexpr int64_t kBytes = int64_t{512} << 20;  // more than the last-level cache of most machines
    TARE_ASSIGN([[maybe_unused]] const auto held, context.memory().reserve("the bandwidth measurement", kBytes));
    read_gbps = kernels::measure_read_bytes_per_s(caps.isa, context.pool(), kBytes, 4) / 1e9;
  }

  context.say(fmt::format("CPU        {}", host.cpu));
  context.say(fmt::format("kernels    {}{}", machine::isa_name(caps.isa), caps.avx512_bf16 ? " with bf16" : ""));
  context.say(fmt::format("threads    {} of {} CPUs", context.threads(), host.online_cpus));
  context.say(fmt::format("caches     L1d {}, L2 {}, L3 {}", size_text(static_cast<uint64_t>(host.l1d_bytes)),
                          size_text(static_cast<uint64_t>(host.l2_bytes)),
                          size_text(static_cast<uint64_t>(host.l3_bytes))));
  context.say(
      fmt::format("memory     {}, {} available", size_text(host.memory_bytes), size_text(host.available_bytes)));
  context.say(fmt::format("reads      {:.1f} GB/s with {} threads", read_gbps, context.threads()));
  context.say(fmt::format(
      "\nDecoding reads every weight once a token: expect at most {:.1f} tokens/s per GB of weights.", read_gbps));
  for (const std::string& warning : warnings) context.say("warning: " + warning);

  json::array warning_list(warnings.begin(), warnings.end());
  context.emit({{"machine",
                 {{"cpu", host.cpu},
                  {"isa", machine::isa_name(caps.isa)},
                  {"avx512_bf16", caps.avx512_bf16},
                  {"threads", context.threads()},
                  {"owned_cpus", host.owned_cpus},
                  {"online_cpus", host.online_cpus},
                  {"memory_bytes", host.memory_bytes},
                  {"available_bytes", host.available_bytes},
                  {"l1d_bytes", host.l1d_bytes},
                  {"l2_bytes", host.l2_bytes},
                  {"l3_bytes", host.l3_bytes},
                  {"read_gbps", read_gbps}}},
                {"warnings", std::move(warning_list)},
                {"expected", {{"decode_tokens_per_s_per_gb", read_gbps}}}});
  return {};
}

}  // namespace

extern const Command kDoctor;
const Command kDoctor = {
    .name = "doctor",
    .summary = "what this machine can do, and what is in the way",
    .examples = "tare doctor\ntare doctor --json --threads 1",
    .declare = [](CLI::App&) -> Runner { return doctor; },
};

}  // namespace tare::cli
