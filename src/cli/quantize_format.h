#pragma once

#include <string>

#include "base/result.h"
#include "quantize/pipeline.h"

namespace tare::cli {

/// The format of the result: what the user says (`wanted`, may be empty) if what the method makes fits into it, else
/// the method's own. Errors: unknown; one that cannot hold it (unless losses are allowed).
Result<std::string> settle_format(const quantize::Recipe& recipe, const std::string& wanted, bool allow_loss);

/// Whether the format holds every matrix of the plan: shapes, groups and schemes are tried on small stand-ins of random
/// numbers, so that hours of work do not end in a refusal. A format with a container of its own is not asked.
Status check_format(const std::string& format, const tensor::ModelWeights& source, const model::Architecture& arch,
                    const quantize::PipelineOptions& options, ThreadPool& pool);

}  // namespace tare::cli
