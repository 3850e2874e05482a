#include "cli/command.h"

namespace tare::cli {

// One row a subcommand, each described in its own file.
extern const Command kDoctor;

const std::vector<const Command*>& builtin_commands() {
  static const std::vector<const Command*> commands = {
      &kDoctor,
  };
  return commands;
}

}  // namespace tare::cli
