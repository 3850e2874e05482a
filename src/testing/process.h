#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tare::testing {

/// How a child process ended and what it printed.
struct Finished {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
};

struct ProcessOptions {
  std::string input;                                             // standard input
  bool keep_input_open = false;                                  // no end of file after it
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
  int interrupt_after_ms = 0;                                    // send SIGINT after that time; 0: never
  int timeout_ms = 120000;                                       // then SIGKILL
};

/// Runs a program (its path, then its arguments) to its end. Test helper: fails the test when it cannot be started.
Finished run_process(const std::vector<std::string>& command, const ProcessOptions& options = {});

}  // namespace tare::testing
