#include "cli/command.h"

namespace tare::cli {

// One row a subcommand, each described in its own file.
extern const Command kDoctor;
extern const Command kEvalKld;
extern const Command kEvalLogits;
extern const Command kEvalPpl;

const std::vector<const Command*>& builtin_commands() {
  static const std::vector<const Command*> commands = {
      &kEvalPpl,
      &kEvalKld,
      &kEvalLogits,
      &kDoctor,
  };
  return commands;
}

}  // namespace tare::cli
