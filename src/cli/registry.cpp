#include "cli/command.h"

namespace tare::cli {

// One row a subcommand, each described in its own file.
extern const Command kEvalPpl;
extern const Command kEvalKld;
extern const Command kEvalLogits;
extern const Command kTokenize;
extern const Command kDetokenize;
extern const Command kTemplate;
extern const Command kDoctor;

const std::vector<const Command*>& builtin_commands() {
  static const std::vector<const Command*> commands = {
      &kEvalPpl, &kEvalKld, &kEvalLogits, &kTokenize, &kDetokenize, &kTemplate, &kDoctor,
  };
  return commands;
}

}  // namespace tare::cli
