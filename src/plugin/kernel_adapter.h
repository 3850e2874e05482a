#pragma once

#include "base/result.h"
#include "kernels/linear.h"
#include "tare/plugin.h"

namespace tare::plugin {

/// A plugin's kernel as a row of the registry; the row lives until the program ends.
/// Errors: more plugin kernels than there is room for.
Result<const kernels::LinearKernel*> adapt_kernel(const TareLinearKernel& kernel);

}  // namespace tare::plugin
