#include "machine/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tare::machine {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Host, FactsArePlausible) {
  const Host host = inspect_host();
  EXPECT_FALSE(host.cpu.empty());
  EXPECT_GE(host.owned_cpus, 1);
  EXPECT_LE(host.owned_cpus, host.online_cpus);
  EXPECT_GT(host.memory_bytes, uint64_t{64} << 20);
  EXPECT_LE(host.available_bytes, host.memory_bytes);
}

TEST(Host, WarnsOnlyWhereThereIsAReason) {
  Host calm;
  calm.owned_cpus = calm.online_cpus = 8;
  calm.available_bytes = uint64_t{8} << 30;
  EXPECT_THAT(warnings_of(calm), Not(Contains(HasSubstr("load average"))));
  Host busy = calm;
  busy.load_average = 7.5;
  busy.owned_cpus = 2;
  busy.swap_used_bytes = uint64_t{1} << 30;
  busy.available_bytes = uint64_t{100} << 20;
  const auto warnings = warnings_of(busy);
  EXPECT_THAT(warnings, Contains(HasSubstr("load average 7.5")));
  EXPECT_THAT(warnings, Contains(HasSubstr("2 of the machine's 8 CPUs")));
  EXPECT_THAT(warnings, Contains(HasSubstr("1.00 GiB are swapped out")));
  EXPECT_THAT(warnings, Contains(HasSubstr("only 100 MiB")));
}

}  // namespace
}  // namespace tare::machine
