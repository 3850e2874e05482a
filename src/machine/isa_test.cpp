#include "machine/isa.h"

#include <gtest/gtest.h>

namespace tare::machine {
namespace {

TEST(Isa, NamesRoundTripAndLevelsAreRefused) {
  for (const Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512Vnni}) EXPECT_EQ(*parse_isa(isa_name(isa)), isa);
  EXPECT_FALSE(parse_isa("sse9").ok());
  for (const Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512Vnni}) {
    EXPECT_EQ(capabilities(isa).ok(), isa <= detect_isa());
  }
  EXPECT_GE(capabilities().l1d_bytes, 8 << 10);
}

}  // namespace
}  // namespace tare::machine
