#include "cli/bench_record.h"

#include <boost/json.hpp>
#include <fstream>

#include "base/version.h"
#include "cli/engine_flags.h"
#include "cli/json_out.h"
#include "cli/model_flags.h"

namespace tare::cli {

boost::json::object bench_conditions(Context& context, std::string_view benchmark, const runtime::LoadedModel& model,
                                     const runtime::EnginePlan& plan) {
  return {{"schema", 1},
          {"benchmark", benchmark},
          {"version", kVersion},
          {"cpu", machine::cpu_model()},
          {"isa", machine::isa_name(context.capabilities().isa)},
          {"threads", context.threads()},
          {"memory_budget", context.options().memory},
          {"model", model.path},
          {"format", model.format},
          {"bpw", model.bits_per_weight()},
          {"kernels", kernel_names(*model.transformer)},
          {"engine", plan_json(plan)},
          {"seed", context.options().seed.value_or(0)}};
}

Status append_record(const std::string& path, const boost::json::object& record) {
  if (path.empty()) return {};
  std::ofstream out(path, std::ios::app);
  out << json_line(record) << "\n";
  out.flush();
  if (!out) return io_error("cannot write the record", {.where = path});
  return {};
}

}  // namespace tare::cli
