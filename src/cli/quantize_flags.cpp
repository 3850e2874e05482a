#include "cli/quantize_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "cli/options.h"

namespace tare::cli {

void declare_quantize(CLI::App& app, QuantizeFlags& f) {
  app.add_option("MODEL", f.model, "Hugging Face directory, .gguf or .safetensors file")->required();
  std::vector<std::string_view> methods;
  for (const quantize::Recipe& recipe : quantize::recipes()) methods.push_back(recipe.name);
  app.add_option("--method", f.method,
                 fmt::format("{} (see `tare methods`); default: rtn, beside a target gptq", fmt::join(methods, ", ")));
  app.add_option("--out", f.out, "folder of the result; must not exist yet");
  app.add_option("--format", f.format,
                 "checkpoint format of the result (default: the plan's or the method's, tare for most)");
  app.add_option("--scheme", f.scheme.scheme, "widths, as W4A8KV4 (default: the method's)");
  app.add_option("--bits", f.scheme.bits, "weight width, 2..8");
  app.add_option("--group-size", f.scheme.group_size, "inputs that share a scale, -1 for a whole row");
  auto* symmetric = app.add_flag("--symmetric", f.symmetric, "zero point fixed");
  app.add_flag("--asymmetric", f.asymmetric, "a zero point a group")->excludes(symmetric);
  app.add_option("--grid", f.scheme.grid,
                 "integer, minimum, progressive, qoq-channel, or a form: nf4, fp8, mxfp4, ... (default: by scheme)");
  app.add_option("--scale-rule", f.scheme.scale_rule,
                 "absmax: absmax/(2^(b-1)-1), the default; compressed-tensors: absmax/((2^b-1)/2)");
  app.add_option("--scale-dtype", f.scheme.scale_dtype, "float16, bfloat16 or float32 (default: by scheme)");
  app.add_option("--head", f.head, "embedding and head: source, bfloat16, float16, float32, int8, int8-a8")
      ->capture_default_str();
  app.add_option(
         "--calibration", f.calibration,
         "what calibrated methods run the model on: text, conversations (.jsonl) or token ids (.json); default: "
         "built in, English prose")
      ->type_name("FILE");
  app.add_option("--samples", f.samples, "windows of calibration data, the first ones")->capture_default_str();
  app.add_option("--sequence-length", f.sequence_length, "tokens of a window")->capture_default_str();
  app.add_flag("--dequantize-first", f.dequantize_first, "quantize a checkpoint that is quantized already");
  app.add_flag("--allow-loss", f.allow_loss, "leave out what the format cannot say, and list it");
  app.add_flag("--resume", f.resume, "go on with an unfinished run of the same command");
  app.add_option("--log-json", f.log_json, "append what happens to this file, one JSON line an event")
      ->type_name("FILE");
  app.add_flag("--overwrite", f.overwrite, "replace --out when it exists");
  declare_gate(app, f.gate);
  declare_precision(app, f.precision);
  app.add_option("--report", f.report, "write one self-contained HTML page about the result")->type_name("FILE");
}

std::vector<std::string> scheme_flags_given(const QuantizeFlags& flags) {
  const quantize::SchemeFlags& s = flags.scheme;
  const std::pair<const char*, bool> all[] = {{"--method", !flags.method.empty()},
                                              {"--scheme", !s.scheme.empty()},
                                              {"--bits", s.bits.has_value()},
                                              {"--group-size", s.group_size.has_value()},
                                              {"--symmetric", flags.symmetric},
                                              {"--asymmetric", flags.asymmetric},
                                              {"--grid", !s.grid.empty()},
                                              {"--scale-rule", !s.scale_rule.empty()},
                                              {"--scale-dtype", !s.scale_dtype.empty()},
                                              {"--set", !flags.set.empty()},
                                              {"--ignore", !flags.ignore.empty()}};
  std::vector<std::string> out;
  for (const auto& [name, given] : all) {
    if (given) out.emplace_back(name);
  }
  return out;
}

}  // namespace tare::cli
