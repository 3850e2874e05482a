#pragma once

#include <string_view>

#include "base/result.h"

namespace tare {

/// From now on SIGINT and SIGTERM set a flag that long work checks; the second one ends the process at once.
/// Called by `main` only: a library does not touch signals.
void install_interrupt_handler();

/// True after SIGINT or SIGTERM. Lock-free; any thread may ask, as often as it likes.
bool interrupted();

/// Forgets an interrupt that has been dealt with (`chat` stops one answer and goes on).
void clear_interrupt();

/// For loops: TARE_TRY(check_interrupt("quantize")). Error: kInterrupted.
Status check_interrupt(std::string_view what);

}  // namespace tare
