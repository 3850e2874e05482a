#include "base/size_text.h"

#include <gtest/gtest.h>

namespace tare {
namespace {

TEST(ParseSize, TakesBinaryAndDecimalUnits) {
  EXPECT_EQ(*parse_size("2GiB", "--memory"), 2147483648u);
  EXPECT_EQ(*parse_size("1.5 GiB", "--memory"), 1610612736u);
  EXPECT_EQ(*parse_size("900MiB", "--memory"), 943718400u);
  EXPECT_EQ(*parse_size("900mib", "--memory"), 943718400u);
  EXPECT_EQ(*parse_size("100MB", "--memory"), 100000000u);
  EXPECT_EQ(*parse_size("4096", "--memory"), 4096u);
  EXPECT_EQ(*parse_size("0", "--memory"), 0u);
}

TEST(ParseSize, RefusesTheRest) {
  for (const char* text : {"", "GiB", "-1", "-0", "1e3", "nan", "inf", "2 apples", "2G", "1GiB ", "99999999999TiB"}) {
    const auto size = parse_size(text, "--memory");
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(exit_code(size.error().kind), 2);
    EXPECT_EQ(size.error().where, "--memory");
  }
}

TEST(SizeText, RoundsToThreeDigits) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1.00 KiB");
  EXPECT_EQ(size_text(98362432), "93.8 MiB");
  EXPECT_EQ(size_text(1610612736), "1.50 GiB");
  EXPECT_EQ(size_text((1u << 20) - 1), "1.00 MiB");
}

}  // namespace
}  // namespace tare
