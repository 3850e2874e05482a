#pragma once

#include <string_view>

namespace tare::kernels {

/// What a kernel does differently from some M on, with the measurement behind the number; empty when it has one loop
/// for all M. docs/decisions/kernels-*.md hold the tables.
std::string_view thresholds(std::string_view kernel_name);

}  // namespace tare::kernels
