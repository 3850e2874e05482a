#pragma once

#include "cli/command.h"
#include "cli/quantize_flags.h"

namespace tare::cli {

/// `tare quantize` with these flags: settles what is asked, quantizes, writes, judges, and says what it did. `flags`
/// takes what was settled. Errors: those of each step; kGateFailed when the result was kept under its rejected name.
Status run_quantize(Context& context, QuantizeFlags& flags);

}  // namespace tare::cli
