#include "base/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace tare {
namespace {

TEST(Interrupt, FirstSignalSetsAFlagThatCanBeCleared) {
  install_interrupt_handler();
  EXPECT_FALSE(interrupted());
  EXPECT_TRUE(check_interrupt("work").ok());
  raise(SIGINT);
  EXPECT_TRUE(interrupted());
  EXPECT_EQ(exit_code(check_interrupt("work").error().kind), 4);
  EXPECT_EQ(check_interrupt("work").error().message(), "work was interrupted");
  clear_interrupt();
  EXPECT_FALSE(interrupted());
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

TEST(InterruptDeathTest, SecondSignalKills) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        install_interrupt_handler();
        raise(SIGTERM);
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace tare
