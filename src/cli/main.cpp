#include <string>
#include <vector>

#include "base/interrupt.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  tare::install_interrupt_handler();
  return tare::cli::run(tare::cli::builtin_commands(), std::vector<std::string>(argv + 1, argv + argc));
}
