// What scripts rely on, whatever the command: exit codes, the error line, one JSON document.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/command.h"
#include "cli/json_out.h"
#include "tare_binary.h"
#include "testing/fixtures.h"

namespace tare::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

void expect_usage_error(const std::vector<std::string>& args, const std::string& part) {
  const Finished done = tare_run(args);
  EXPECT_EQ(done.exit_code, 2) << done.err;
  EXPECT_EQ(done.out, "");
  EXPECT_THAT(done.err, MatchesRegex("error: [^\n]*\n")) << "one line";
  EXPECT_THAT(done.err, HasSubstr(part));
}

TEST(CliContract, UsageErrorsAreOneLineAndExitCode2) {
  expect_usage_error({"frobnicate"}, "found 'frobnicate'");
  expect_usage_error({"doctr"}, "did you mean doctor?");
  expect_usage_error({"doctor", "--jsom"}, "did you mean --json?");
  expect_usage_error({"doctor", "surplus"}, "found 'surplus'");
  expect_usage_error({"doctor", "--threads", "zero"}, "--threads");
  expect_usage_error({"doctor", "--seed", "-1"}, "--seed");
  expect_usage_error({"doctor", "--memory", "3 apples"}, "(--memory): expected a number and a unit, as in 2GiB");
  expect_usage_error({"doctor", "--isa", "mmx"}, "expected reference, avx2, avx512vnni, found 'mmx'");
  expect_usage_error({"doctor", "--config", "no/such/file.json"}, "no/such/file.json");
  EXPECT_EQ(tare_run({}).exit_code, 2);
}

TEST(CliContract, ListsDoNotSwallowTheModel) {
  EXPECT_THAT(tare_run({"bench", "model", "--batch", "1,2", "no/such/model"}).err, HasSubstr("no/such/model"));
  expect_usage_error({"bench", "model", "--batch", "1,x", "no/such/model"}, "--batch: 1,x is no list");
}

TEST(CliContract, AFailedCommandStillPrintsOneDocument) {
  const json::object document = tare_json({"doctor", "--memory", "nonsense"}, 2);
  EXPECT_THAT(std::string(document.at("error").as_string()), HasSubstr("--memory"));
}

TEST(CliContract, WhatDoesNotFitHasExitCode3) {
  const Finished done = tare_run({"doctor", "--memory", "64kB"});
  EXPECT_EQ(done.exit_code, 3);
  EXPECT_THAT(done.err, StartsWith("error: over the memory budget (the program): expected at most 62.5 KiB"));
}

TEST(CliContract, HelpNamesEveryCommandAndEachHasExamples) {
  const Finished help = tare_run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const cli::Command* command : cli::builtin_commands()) {
    const std::string name(command->name);
    EXPECT_THAT(help.out, HasSubstr("  " + name + " "));
    EXPECT_THAT(std::string(command->examples), StartsWith("tare ")) << name;
    std::vector<std::string> args;
    for (size_t i = 0; i < name.size();) {
      const size_t end = std::min(name.find(' ', i), name.size());
      args.push_back(name.substr(i, end - i));
      i = end + 1;
    }
    args.emplace_back("--help");
    const Finished one = tare_run(args);
    EXPECT_EQ(one.exit_code, 0) << name << one.err;
    EXPECT_THAT(one.out, HasSubstr("Examples:\n  tare ")) << name;
    EXPECT_THAT(one.out, HasSubstr("--json")) << name;
  }
  EXPECT_THAT(tare_run({"--version"}).out, MatchesRegex("tare [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(CliContract, GlobalFlagsMayStandBeforeTheCommand) {
  const Finished done = tare_run({"--threads", "1", "doctor", "--json"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(json::parse(done.out, "")->at("machine").at("threads").as_int64(), 1);
}

TEST(CliContract, ConfigFileHoldsFlagsAndTheCommandLineWins) {
  const std::string folder = scratch_directory("cli-config");
  const std::string path = folder + "/config.json";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };

  write(R"({"threads": 1, "isa": "reference", "quiet": true, "no-progress": false})");
  json::object machine = tare_json({"doctor", "--config", path}).at("machine").as_object();
  EXPECT_EQ(machine.at("threads").as_int64(), 1);
  EXPECT_EQ(machine.at("isa").as_string(), "reference");
  machine = tare_json({"doctor", "--config=" + path, "--threads", "2"}).at("machine").as_object();
  EXPECT_EQ(machine.at("threads").as_int64(), 2);

  write(R"({"thread": 1})");
  expect_usage_error({"doctor", "--config", path}, "key 'thread'");
  write(R"({"threads": true})");
  expect_usage_error({"doctor", "--config", path}, "key 'threads'");
  write(R"({"quiet": 1})");
  expect_usage_error({"doctor", "--config", path}, "expected true or false");
  write(R"({"threads": 1, "threads": 2})");
  expect_usage_error({"doctor", "--config", path}, "'threads' twice");
  write("[]");
  expect_usage_error({"doctor", "--config", path}, "a JSON object");
}

TEST(CliContract, DoctorHasItsKeys) {
  const json::object document = tare_json({"doctor"});
  EXPECT_TRUE(document.at("machine").is_object());
  EXPECT_TRUE(document.at("warnings").is_array());
  EXPECT_GT(document.at("expected").at("decode_tokens_per_s_per_gb").to_number<double>(), 0.0);
}

TEST(CliContract, CtrlCStopsWithExitCode4) {
  // The command waits for an input that never ends.
  const Finished done = tare_run({"template", "--template", "-", "--messages", "-"},
                                 {.keep_input_open = true, .interrupt_after_ms = 1000, .timeout_ms = 20000});
  EXPECT_EQ(done.exit_code, 4) << "signal " << done.signal << " " << done.err;
  EXPECT_THAT(done.err, HasSubstr("was interrupted"));
}

TEST(JsonLine, ReplacesWhatJsonCannotSay) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(cli::json_line(json::object{{"a", nan}, {"b", json::array{1, 0.5}}}), R"({"a":null,"b":[1,5E-1]})");
  EXPECT_EQ(cli::json_line(json::value("a\xff\xc3\xa9\xed\xa0\x80z")),
            "\"a\xEF\xBF\xBD\xc3\xa9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz\"");
  EXPECT_EQ(cli::json_line(json::object{{"k\xff", "v"}}), "{\"k\xEF\xBF\xBD\":\"v\"}");
}

}  // namespace
}  // namespace tare::testing
