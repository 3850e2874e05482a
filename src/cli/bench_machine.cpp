#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "cli/command.h"
#include "kernels/peaks.h"
#include "machine/isa.h"

namespace tare::cli {

namespace {

boost::json::object measure(Context& context, ThreadPool& pool) {
  const machine::Isa isa = context.capabilities().isa;
  const kernels::Peaks peaks = kernels::measure_peaks(isa, pool);
  const double read = kernels::measure_read_bytes_per_s(isa, pool) / 1e9;
  context.say(fmt::format(
      "{:2} thread{}  reads {:6.1f} GB/s   u4 x s8 {:6.3f} TOP/s   s8 x s8 {:6.3f} TOP/s   f32 {:7.1f} GFLOP/s",
      pool.size(), pool.size() == 1 ? " " : "s", read, peaks.u4s8_tops, peaks.s8s8_tops, peaks.f32_gflops));
  return {{"threads", pool.size()},
          {"read_gbps", read},
          {"int8_u4s8_tops", peaks.u4s8_tops},
          {"int8_s8s8_tops", peaks.s8s8_tops},
          {"fp32_gflops", peaks.f32_gflops},
          // bf16 weights are widened to f32 and multiplied there, so this is the ceiling of bf16 products here.
          {"bf16_gflops", peaks.f32_gflops}};
}

Status bench_machine(Context& context) {
  context.say(fmt::format("{}, {}", machine::cpu_model(), machine::isa_name(context.capabilities().isa)));
  ThreadPool one(1);
  boost::json::object single = measure(context, one);
  boost::json::object all = context.threads() == 1 ? single : measure(context, context.pool());
  boost::json::object document{{"cpu", machine::cpu_model()},
                               {"isa", machine::isa_name(context.capabilities().isa)},
                               {"threads", context.threads()},
                               {"one_thread", single},
                               {"all_threads", all}};
  for (const char* key : {"int8_u4s8_tops", "int8_s8s8_tops", "fp32_gflops", "bf16_gflops", "read_gbps"}) {
    document[key] = {{"one", single[key]}, {"all", all[key]}};
  }
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kBenchMachine;
const Command kBenchMachine = {
    .name = "bench machine",
    .summary = "what this machine can read and multiply: the ceilings that all shares refer to",
    .examples = "tare bench machine\ntare bench machine --isa avx2 --json",
    .declare = [](CLI::App&) -> Runner { return bench_machine; },
};

}  // namespace tare::cli
