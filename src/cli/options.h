#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"

namespace CLI {
class App;
}

namespace tare::cli {

/// The flags that every command takes (docs/cli.md).
struct GlobalOptions {
  int threads = 0;     // 0: all CPUs this process may use
  std::string memory;  // "2GiB"; empty: no limit
  std::string isa;     // highest level allowed; empty: what the CPU has
  std::string kernel;  // force one; empty: choose
  std::string
      activations;  // "int8": for weight-only formats too; "fp8": those of FP8 checkpoints; "none", empty: neither
  std::optional<uint64_t> seed;
  bool json = false;
  bool quiet = false;
  bool no_progress = false;
  std::string log_level;  // empty: info, or error with --quiet
  std::vector<std::string> plugins;
  std::string config;  // already merged into the arguments when a command runs
};

/// Adds the global flags to a command's parser, in a group of their own.
void declare_global_options(CLI::App& app, GlobalOptions& options);

/// Checks what the parser cannot. Errors: kInvalidInput.
Result<log::Level> log_level(const GlobalOptions& options);

/// A flag that may be repeated, one value each: --stop A --stop B. The values are taken as they are.
void add_repeated(CLI::App& app, const std::string& name, std::vector<std::string>& values, const std::string& help);

/// A flag with whole numbers from 0 and commas between them: --batch 1,16. Replaces the values.
void add_list(CLI::App& app, const std::string& name, std::vector<int64_t>& values, const std::string& help);

/// Arguments that stand in the JSON object of `--config FILE`: each key is a flag without its dashes, true switches a
/// flag on (false leaves it out), an array repeats it. Flags on the command line win: keys that `args` already has are
/// left out. Errors: unreadable or malformed file, a key that is no flag of `app` (named), `config` itself.
Result<std::vector<std::string>> config_arguments(const std::string& path, const std::vector<std::string>& args,
                                                  CLI::App& app);

}  // namespace tare::cli
