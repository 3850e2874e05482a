#include "base/result.h"

#include <gtest/gtest.h>

namespace tare {
namespace {

TEST(Error, TellsEverythingInOneLine) {
  const Error error =
      invalid_input("bad header", {.where = "a.bin", .expected = "8 bytes", .found = "3", .hint = "copy it again"});
  EXPECT_EQ(error.message(), "bad header (a.bin): expected 8 bytes, found 3; copy it again");
  EXPECT_EQ(exit_code(error.kind), 2);
}

TEST(Error, HostileNamesCannotBreakTheLine) {
  EXPECT_EQ(invalid_input("x", {.where = "a\nb\x7f"}).message(), "x (a b )");
}

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_input("odd");
  return value / 2;
}

Result<int> quarter(int value) {
  TARE_ASSIGN(const int first, half(value));
  TARE_ASSIGN(const int second, half(first));
  return second;
}

TEST(Result, ErrorsTravelUp) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).error().what, "odd");
}

}  // namespace
}  // namespace tare
