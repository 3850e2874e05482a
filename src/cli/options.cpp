#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "base/json.h"

namespace tare::cli {

void declare_global_options(CLI::App& app, GlobalOptions& o) {
  const std::string group = "Global options";
  app.add_option("--threads", o.threads, "worker threads (default: all CPUs this process may use)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  app.add_option("--memory", o.memory, "hard memory budget, as 2GiB")
      ->type_name("SIZE")
      ->check(CLI::Validator(
          [](std::string& text) { return text.empty() ? std::string("Value is empty") : std::string(); }, ""))
      ->group(group);
  app.add_option("--isa", o.isa, "highest instruction set allowed: reference, avx2, avx512vnni")
      ->type_name("LEVEL")
      ->group(group);
  app.add_option("--kernel", o.kernel, "force one kernel; it is an error when it refuses")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--activations", o.activations,
                 "none; int8: 8-bit activations for weight-only formats; fp8: those of FP8 checkpoints")
      ->type_name("MODE")
      ->check(CLI::IsMember({"none", "int8", "fp8"}))
      ->group(group);
  app.add_option("--seed", o.seed, "seed of everything random")
      ->type_name("N")
      ->check(CLI::Validator(
          [](std::string& text) {
            const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
            return digits ? std::string() : fmt::format("Value {} is not a whole number from 0", text);
          },
          ""))
      ->group(group);
  app.add_flag("--json", o.json, "print exactly one JSON document on standard output")->group(group);
  app.add_flag("--quiet", o.quiet, "no progress, no messages below errors")->group(group);
  app.add_flag("--no-progress", o.no_progress, "no progress display")->group(group);
  app.add_option("--log-level", o.log_level, "debug, info, warning, error, off")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->group(group);
  add_repeated(app, "--plugin", o.plugins, "load a plugin (may be repeated)");
  app.get_option("--plugin")->type_name("FILE")->group(group);
  app.add_option("--config", o.config, "flags from a JSON object; the command line wins")
      ->type_name("FILE")
      ->group(group);
}

Result<log::Level> log_level(const GlobalOptions& options) {
  const std::string name = !options.log_level.empty() ? options.log_level : options.quiet ? "error" : "info";
  if (name == "debug") return log::Level::kDebug;
  if (name == "info") return log::Level::kInfo;
  if (name == "warning") return log::Level::kWarning;
  if (name == "error") return log::Level::kError;
  if (name == "off") return log::Level::kOff;
  return invalid_input("unknown log level", {.where = "--log-level", .found = name});
}

void add_repeated(CLI::App& app, const std::string& name, std::vector<std::string>& values, const std::string& help) {
  // One value per occurrence: else the flag would swallow the positionals after it, and values in [brackets] would be
  // taken apart.
  app.add_option(name, values, help)->type_size(1)->expected(1)->allow_extra_args(false)->take_all();
}

void add_list(CLI::App& app, const std::string& name, std::vector<int64_t>& values, const std::string& help) {
  // One text per occurrence, taken apart here: a flag with many values would swallow the positionals after it.
  const auto parse = [&values, name](const std::string& text) {
    std::vector<int64_t> parsed;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      int64_t value = 0;
      const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, value);
      if (error != std::errc() || rest != text.data() + end || value < 0) {
        throw CLI::ValidationError(name, fmt::format("{} is no list of whole numbers as 1,16", text));
      }
      parsed.push_back(value);
      begin = end + 1;
    }
    values = std::move(parsed);
  };
  app.add_option_function<std::string>(name, parse, help)
      ->type_name("N,N...")
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

namespace {

Result<std::string> argument_text(const json::value& value, const std::string& where) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_int64() || value.is_uint64() || value.is_double()) return boost::json::serialize(value);
  return invalid_input("wrong value in the config file",
                       {.where = where,
                        .expected = "a string, a number, true, false or an array of strings and numbers",
                        .found = boost::json::serialize(value).substr(0, 80)});
}

}  // namespace

Result<std::vector<std::string>> config_arguments(const std::string& path, const std::vector<std::string>& args,
                                                  CLI::App& app) {
  TARE_ASSIGN(const json::value document, json::parse_file(path));
  if (!document.is_object()) {
    return invalid_input("wrong config file", {.where = path, .expected = "a JSON object whose keys are flags"});
  }
  std::vector<std::string> out;
  for (const auto& member : document.get_object()) {
    const std::string flag = fmt::format("--{}", std::string_view(member.key()));
    const std::string where = fmt::format("{}, key '{}'", path, std::string_view(member.key()));
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (!option || flag == "--config" || flag == "--help") {
      return invalid_input(
          "unknown key in the config file",
          {.where = where, .expected = fmt::format("a flag of '{}' without its dashes", app.get_name())});
    }
    const bool given = std::any_of(
        args.begin(), args.end(), [&](const std::string& arg) { return arg == flag || arg.rfind(flag + "=", 0) == 0; });
    if (given) continue;
    const bool takes_value = option->get_items_expected_max() > 0;
    if (member.value().is_bool()) {
      if (takes_value) {
        return invalid_input("wrong value in the config file",
                             {.where = where, .expected = "a value", .found = "true or false"});
      }
      if (member.value().get_bool()) out.push_back(flag);
      continue;
    }
    if (!takes_value) {
      return invalid_input("wrong value in the config file", {.where = where, .expected = "true or false"});
    }
    if (member.value().is_array()) {
      for (const json::value& item : member.value().get_array()) {
        TARE_ASSIGN(const std::string text, argument_text(item, where));
        out.push_back(fmt::format("{}={}", flag, text));
      }
    } else {
      TARE_ASSIGN(const std::string text, argument_text(member.value(), where));
      out.push_back(fmt::format("{}={}", flag, text));
    }
  }
  return out;
}

}  // namespace tare::cli
