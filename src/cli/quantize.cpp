#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "cli/quantize_flags.h"
#include "cli/quantize_run.h"

namespace tare::cli {

extern const Command kQuantize;
const Command kQuantize = {
    .name = "quantize",
    .summary = "make a smaller model and say what it cost",
    .examples =
        "tare quantize model/ --out out/ --scheme W4A8 --group-size 128\n"
        "tare quantize model.gguf --out out/ --scheme W8A8 --format compressed-tensors\n"
        "tare quantize model/ --out out/ --target-bpw 4.5 --calibration text.txt\n"
        "tare quantize model/ --out out/ --bits 3 --set '.*down_proj:bits=4' --ignore '.*layers\\.0\\..*'",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<QuantizeFlags>();
      declare_quantize(app, *flags);
      add_repeated(app, "--ignore", flags->ignore,
                   "modules that stay as they are (pattern from the start of the name)");
      add_repeated(app, "--set", flags->set, "exception, as 'RE:bits=8,group_size=32'");
      return [flags](Context& context) { return run_quantize(context, *flags); };
    },
};

}  // namespace tare::cli
