#include "cli/command.h"

namespace tare::cli {

// One row a subcommand, each described in its own file; the order is that of `tare --help`.
extern const Command kGenerate;
extern const Command kChat;
extern const Command kQuantize;
extern const Command kConvert;
extern const Command kEvalPpl;
extern const Command kEvalKld;
extern const Command kEvalKv;
extern const Command kEvalLogits;
extern const Command kBlame;
extern const Command kEvalBaseline;
extern const Command kBenchKernel;
extern const Command kBenchMachine;
extern const Command kBenchModel;
extern const Command kBenchThroughput;
extern const Command kBenchLatency;
extern const Command kBenchInterference;
extern const Command kBenchRandomModel;
extern const Command kTokenize;
extern const Command kDetokenize;
extern const Command kTemplate;
extern const Command kInspect;
extern const Command kVerify;
extern const Command kExplain;
extern const Command kMethods;
extern const Command kDoctor;

const std::vector<const Command*>& builtin_commands() {
  // clang-format off
  static const std::vector<const Command*> commands = {
      &kGenerate,
      &kChat,
      &kQuantize,
      &kConvert,
      &kEvalPpl,
      &kEvalKld,
      &kEvalKv,
      &kEvalLogits,
      &kBlame,
      &kEvalBaseline,
      &kBenchKernel,
      &kBenchMachine,
      &kBenchModel,
      &kBenchThroughput,
      &kBenchLatency,
      &kBenchInterference,
      &kBenchRandomModel,
      &kTokenize,
      &kDetokenize,
      &kTemplate,
      &kInspect,
      &kVerify,
      &kExplain,
      &kMethods,
      &kDoctor,
  };
  // clang-format on
  return commands;
}

}  // namespace tare::cli
