#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_budget.h"
#include "base/progress.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "cli/options.h"
#include "machine/isa.h"

namespace CLI {
class App;
}

namespace tare::checkpoints {
struct LoadOptions;
}
namespace tare::plugin {
struct Registries;
}

namespace tare::cli {

/// What a running command has: the global options turned into things.
class Context {
 public:
  /// Errors: --memory, --isa, --log-level or --plugin is wrong; the program alone does not fit --memory.
  static Result<std::unique_ptr<Context>> create(const GlobalOptions& options);
  ~Context();

  const GlobalOptions& options() const { return options_; }
  bool json() const { return options_.json; }
  /// Instruction set (lowered by --isa) and caches.
  const machine::Capabilities& capabilities() const { return capabilities_; }
  /// The hard budget of --memory; what the program itself holds is already taken from it.
  MemoryBudget& memory() { return memory_; }
  int threads() const { return threads_; }
  /// Formats, algorithms and kernels: what is built in and what the plugins of --plugin add.
  const plugin::Registries& registries() const { return *registries_; }
  /// For load_checkpoint: --quantization and the formats of plugins.
  checkpoints::LoadOptions load_options(std::string_view format = {}) const;
  /// Started at the first call.
  ThreadPool& pool();
  ProgressMode progress() const { return progress_; }

  /// Text for people on standard output; nothing with --json. A line break is added.
  void say(std::string_view line) const;
  /// Text as it is, at once (streaming); nothing with --json.
  void stream(std::string_view text) const;
  /// The JSON document, with --json only. Called once.
  void emit(const boost::json::object& document);
  /// One line of a JSON-lines command, with or without --json.
  void emit_line(const boost::json::object& document);
  bool emitted() const { return emitted_; }

 private:
  explicit Context(const GlobalOptions& options);

  GlobalOptions options_;
  machine::Capabilities capabilities_;
  std::unique_ptr<plugin::Registries> registries_;
  MemoryBudget memory_;
  MemoryBudget::Reservation program_;
  int threads_ = 1;
  std::unique_ptr<ThreadPool> pool_;
  ProgressMode progress_ = ProgressMode::kOff;
  bool emitted_ = false;
};

/// Runs after the flags were parsed. The kind of an error decides the exit code; a result that fails its check prints
/// its document first and then returns kGateFailed.
using Runner = std::function<Status(Context&)>;

/// One subcommand: its row in the registry, written in its own file.
struct Command {
  std::string_view name;      // "generate", or two words: "eval ppl"
  std::string_view summary;   // one line, no full stop
  std::string_view examples;  // one command a line, shown by --help
  /// Adds flags to the parser and returns what runs. The flags' variables live in the runner (a shared_ptr).
  Runner (*declare)(CLI::App& app);
};

/// All commands, in the order of `tare --help`.
const std::vector<const Command*>& builtin_commands();

/// Parses and runs: everything `main` does. args: without the program name. Returns the exit code; errors are printed
/// as one line on standard error.
int run(const std::vector<const Command*>& commands, const std::vector<std::string>& args);

}  // namespace tare::cli
