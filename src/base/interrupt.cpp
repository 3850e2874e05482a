#include "base/interrupt.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>

namespace tare {

namespace {

// A signal handler can reach nothing but a global.
std::atomic<bool> interrupt_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  if (!interrupt_flag.exchange(true)) return;
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
  raise(signal);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // Without SA_RESTART a read from the terminal returns, so that an interactive command notices.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupt_flag.load(std::memory_order_relaxed);
}

void clear_interrupt() {
  interrupt_flag.store(false);
}

Status check_interrupt(std::string_view what) {
  if (!interrupted()) return {};
  return make_error(ErrorKind::kInterrupted, fmt::format("{} was interrupted", what));
}

}  // namespace tare
