#pragma once

#include "cli/command.h"
#include "cli/quantize_flags.h"
#include "tare/plugin.h"

namespace tare::cli {

/// `tare quantize` with an algorithm of a plugin, which decides matrix by matrix, without data; what it makes is
/// written like any other result. Errors: flags that such an algorithm does not take; what it says itself.
Status quantize_by_plugin(Context& context, const TareAlgorithm& algorithm, const QuantizeFlags& flags);

}  // namespace tare::cli
