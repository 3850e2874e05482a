#include "kernels/peaks.h"

#include <gtest/gtest.h>

#include <vector>

namespace tare::kernels {
namespace {

TEST(Peaks, LoopsOfEveryLevelRun) {
  const std::vector<uint8_t> bytes(1024, 3);
  EXPECT_EQ(kPeaksReference.read(bytes.data(), 1024), 128 * 0x0303030303030303u);
  const auto check = [&](const PeakLoops& loops, double u4s8, double s8s8, double f32) {
    EXPECT_EQ(loops.u4s8(10), 10 * u4s8);
    EXPECT_EQ(loops.s8s8(10), 10 * s8s8);
    EXPECT_EQ(loops.f32(10), 10 * f32);
    std::vector<uint8_t> changed = bytes;
    changed[0] = 7;  // what was read decides the value, so no load can be left out
    EXPECT_NE(loops.read(bytes.data(), 1024), loops.read(changed.data(), 1024));
  };
  const machine::Isa isa = machine::detect_isa();
  if (isa >= machine::Isa::kAvx2) check(kPeaksAvx2, 6 * 8 * 32, 4 * 6 * 16, 12 * 8);
  if (isa >= machine::Isa::kAvx512Vnni) check(kPeaksAvx512Vnni, 24 * 64, 24 * 64, 12 * 16);
}

}  // namespace
}  // namespace tare::kernels
