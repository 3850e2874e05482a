#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "cli/command.h"
#include "runtime/engine_plan.h"
#include "runtime/load.h"

namespace tare::cli {

/// What every record of a benchmark says of its conditions: schema, version, cpu, isa, threads, model, format, kernels,
/// engine sizes, seed.
boost::json::object bench_conditions(Context& context, std::string_view benchmark, const runtime::LoadedModel& model,
                                     const runtime::EnginePlan& plan);

/// Appends one line to --output-file; nothing when it is empty. Errors: the file cannot be written.
Status append_record(const std::string& path, const boost::json::object& record);

}  // namespace tare::cli
