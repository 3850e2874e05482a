#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace tare::testing {

/// Folder of the large reference data: $TARE_FIXTURES, else ../shared/fixtures beside the checkout.
/// Nothing when it does not exist (a user's clone).
std::optional<std::string> fixtures_root();

/// Text of a file, plain or .xz (given without the ending, the .xz form is tried). Test helper: fails the test on
/// error.
std::string read_fixture(const std::string& path);

/// The small real model of `make demo`: $TARE_DEMO_MODEL, else its place in the build folder. Nothing when it is
/// absent.
std::optional<std::string> demo_model();

/// A scratch folder, removed at exit of the process.
std::string scratch_directory(const std::string& name);

}  // namespace tare::testing

// First line of a test that needs the large reference data. Without it the test is skipped with a printed reason, and
// with CI=true that skip is a failure.
#define TARE_NEEDS_FIXTURE(variable, relative)                                                                   \
  const auto variable##_root_ = ::tare::testing::fixtures_root();                                                \
  if (!variable##_root_) {                                                                                       \
    if (std::getenv("CI")) FAIL() << "reference data missing in CI: " << relative;                               \
    GTEST_SKIP() << "skipped: needs " << relative << " (set TARE_FIXTURES to the folder of the reference data)"; \
  }                                                                                                              \
  const std::string variable = *variable##_root_ + "/" + (relative)

// The same for a test that runs the small real model.
#define TARE_NEEDS_DEMO_MODEL(variable)                                                   \
  const auto variable##_found_ = ::tare::testing::demo_model();                           \
  if (!variable##_found_) {                                                               \
    if (std::getenv("CI")) FAIL() << "the demo model is missing in CI";                   \
    GTEST_SKIP() << "skipped: needs the demo model (tools/get_demo_model.sh fetches it)"; \
  }                                                                                       \
  const std::string variable = *variable##_found_
