#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <new>

#include "base/version.h"
#include "cli/command.h"
#include "cli/json_out.h"

namespace tare::cli {

namespace {

using Commands = std::vector<const Command*>;

std::string_view first_word(std::string_view name) {
  return name.substr(0, name.find(' '));
}

std::string help_text(const Commands& commands, std::string_view group = {}) {
  std::string text = fmt::format(
      "tare {}: quantizes language models, says what that cost, runs and checks them\n\n"
      "Usage: tare COMMAND [ARGUMENTS] [--json]\n\nCommands:\n",
      kVersion);
  size_t width = 0;
  for (const Command* command : commands) width = std::max(width, command->name.size());
  for (const Command* command : commands) {
    if (group.empty() || first_word(command->name) == group) {
      text += fmt::format("  {:{}}  {}\n", command->name, width, command->summary);
    }
  }
  text += "\ntare COMMAND --help shows its flags and examples.\n";
  return text;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// "did you mean --json?" for a near miss, else the fallback.
std::string suggestion(std::string_view typed, const std::vector<std::string>& known, std::string fallback) {
  size_t best = std::max<size_t>(1, typed.size() / 3) + 1;
  std::string found;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(typed, candidate);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found.empty() ? std::move(fallback) : fmt::format("did you mean {}?", found);
}

struct Chosen {
  const Command* command = nullptr;
  std::vector<std::string> args;  // without the command's words
};

// The command's words come first, but global flags may stand before them: `tare --threads 2 doctor`.
Result<Chosen> choose(const Commands& commands, const std::vector<std::string>& args) {
  std::vector<std::string> names;
  const auto is_first_word = [&](const std::string& arg) {
    return std::any_of(commands.begin(), commands.end(), [&](const Command* c) { return first_word(c->name) == arg; });
  };
  size_t at = 0;
  if (!args.empty() && args[0].rfind('-', 0) == 0) {
    at = static_cast<size_t>(std::find_if(args.begin(), args.end(), is_first_word) - args.begin());
  }
  for (const Command* command : commands) names.emplace_back(command->name);
  if (at >= args.size()) {
    return invalid_input("no command", {.expected = "tare COMMAND", .hint = "see tare --help"});
  }
  const std::string two_words = at + 1 < args.size() ? args[at] + " " + args[at + 1] : std::string();
  for (const Command* command : commands) {
    size_t words = 0;
    if (command->name == args[at]) words = 1;
    if (command->name == two_words) words = 2;
    if (words == 0) continue;
    Chosen chosen{command, args};
    const auto begin = chosen.args.begin() + static_cast<std::ptrdiff_t>(at);
    chosen.args.erase(begin, begin + static_cast<std::ptrdiff_t>(words));
    return chosen;
  }
  if (is_first_word(args[at])) {
    std::string members;
    for (const Command* command : commands) {
      if (first_word(command->name) != args[at]) continue;
      members += fmt::format("{}{}", members.empty() ? "" : ", ", command->name.substr(args[at].size() + 1));
    }
    return invalid_input("unknown subcommand",
                         {.where = "tare " + args[at],
                          .expected = "one of " + members,
                          .found = at + 1 < args.size() ? fmt::format("'{}'", args[at + 1]) : "nothing"});
  }
  return invalid_input("unknown command", {.found = fmt::format("'{}'", args[at]),
                                           .hint = suggestion(args[at], names, "see tare --help")});
}

Error usage_error(const Command& command, const CLI::ParseError& error) {
  const std::string where = fmt::format("tare {}", command.name);
  const std::string hint = fmt::format("see tare {} --help", command.name);
  std::string what = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    const size_t tail = what.rfind(" is required");
    return invalid_input("missing argument", {.where = where,
                                              .expected = tail == what.npos ? what : what.substr(0, tail),
                                              .found = "nothing",
                                              .hint = hint});
  }
  return invalid_input("bad argument", {.where = where, .found = what, .hint = hint});
}

std::string command_help(CLI::App& app, const Command& command) {
  std::string text = app.help();
  if (!command.examples.empty()) {
    text += "\nExamples:\n";
    for (size_t i = 0; i < command.examples.size();) {
      const size_t end = std::min(command.examples.find('\n', i), command.examples.size());
      text += fmt::format("  {}\n", command.examples.substr(i, end - i));
      i = end + 1;
    }
  }
  return text;
}

std::string config_path(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--config" && i + 1 < args.size()) return args[i + 1];
    if (args[i].rfind("--config=", 0) == 0) return args[i].substr(9);
  }
  return {};
}

// CLI11 reports by exceptions; none leaves this function. Nothing: --help was asked for and printed.
Result<bool> parse(CLI::App& app, const Command& command, std::vector<std::string> args) {
  try {
    if (const std::string path = config_path(args); !path.empty()) {
      TARE_ASSIGN(const std::vector<std::string> more, config_arguments(path, args, app));
      args.insert(args.end(), more.begin(), more.end());
    }
    std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", command_help(app, command));
    return false;
  } catch (const CLI::ParseError& error) {
    return usage_error(command, error);
  }
  if (const std::vector<std::string> extra = app.remaining(); !extra.empty()) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    const auto flag = std::find_if(extra.begin(), extra.end(), [](const auto& e) { return e.rfind('-', 0) == 0; });
    const std::string& culprit = flag == extra.end() ? extra.front() : *flag;
    return invalid_input("unexpected argument", {.where = fmt::format("tare {}", command.name),
                                                 .found = fmt::format("'{}'", culprit),
                                                 .hint = suggestion(culprit.substr(0, culprit.find('=')), known,
                                                                    fmt::format("see tare {} --help", command.name))});
  }
  return true;
}

int report(const Error& error, bool json, bool emitted) {
  // A script that asked for a document gets one, whatever happened.
  if (json && !emitted) fmt::print("{}\n", json_line(boost::json::object{{"error", error.message()}}));
  std::fflush(stdout);
  fmt::print(stderr, "error: {}\n", error.message());
  return exit_code(error.kind);
}

int run_command(const Command& command, const std::vector<std::string>& args, bool json_wanted) {
  CLI::App app(std::string(command.summary), fmt::format("tare {}", command.name));
  app.allow_extras(true);  // unexpected arguments are reported here, all in one form
  app.set_help_flag("--help,-h", "this text");
  GlobalOptions global;
  const Runner runner = command.declare(app);
  declare_global_options(app, global);
  const Result<bool> parsed = parse(app, command, args);
  if (!parsed.ok()) return report(parsed.error(), json_wanted, false);
  if (!*parsed) return 0;
  auto context = Context::create(global);
  if (!context.ok()) return report(context.error(), global.json, false);
  const Status status = runner(**context);
  if (!status.ok()) return report(status.error(), global.json, (*context)->emitted());
  if (std::fflush(stdout) != 0) return report(io_error("cannot write to standard output"), false, true);
  return 0;
}

}  // namespace

int run(const Commands& commands, const std::vector<std::string>& args) {
  const bool json_wanted = std::find(args.begin(), args.end(), "--json") != args.end();
  if (args.empty() || (args.size() == 1 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help"))) {
    if (args.empty()) {
      fmt::print(stderr, "{}", help_text(commands));
      return 2;
    }
    fmt::print("{}", help_text(commands));
    return 0;
  }
  if (args[0] == "--version") {
    fmt::print("tare {}\n", kVersion);
    return 0;
  }
  if (args.size() == 2 && (args[1] == "--help" || args[1] == "-h") &&
      std::none_of(commands.begin(), commands.end(), [&](const Command* c) { return c->name == args[0]; }) &&
      std::any_of(commands.begin(), commands.end(), [&](const Command* c) { return first_word(c->name) == args[0]; })) {
    fmt::print("{}", help_text(commands, args[0]));
    return 0;
  }
  const Result<Chosen> chosen = choose(commands, args);
  if (!chosen.ok()) return report(chosen.error(), json_wanted, false);
  // The library does not throw, but the language and its containers can: say so instead of dying.
  try {
    return run_command(*chosen->command, chosen->args, json_wanted);
  } catch (const std::bad_alloc&) {
    return report(does_not_fit("out of memory", {.where = fmt::format("tare {}", chosen->command->name),
                                                 .hint = "use a smaller model or a --memory budget"}),
                  json_wanted, true);
  } catch (const std::exception& error) {
    return report(internal_error("a mistake in tare itself", {.found = error.what(), .hint = "please report it"}),
                  json_wanted, true);
  }
}

}  // namespace tare::cli
