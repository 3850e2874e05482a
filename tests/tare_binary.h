#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "testing/process.h"

namespace tare::testing {

/// Runs the tare binary of this build.
inline Finished tare_run(std::vector<std::string> args, const ProcessOptions& options = {}) {
  args.insert(args.begin(), TARE_BINARY);
  return run_process(args, options);
}

/// Runs it with --json and returns the document; the test fails unless standard output is exactly one JSON document.
inline json::object tare_json(std::vector<std::string> args, int expected_exit = 0) {
  args.push_back("--json");
  const Finished done = tare_run(args);
  EXPECT_EQ(done.exit_code, expected_exit) << done.err;
  const auto document = json::parse(done.out, "standard output");
  if (!document.ok() || !document->is_object()) {
    ADD_FAILURE() << "not one JSON document: " << done.out.substr(0, 500) << "\n" << done.err;
    return {};
  }
  return document->get_object();
}

}  // namespace tare::testing
