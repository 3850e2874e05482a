#include "runtime/step_pacer.h"

#include <gtest/gtest.h>

namespace tare::runtime {
namespace {

// A machine on which a step costs 10 ms + 1 ms a decode + 2 ms a prompt token.
double machine_s(int64_t decodes, int64_t prompt_tokens) {
  return 0.010 + 0.001 * static_cast<double>(decodes) + 0.002 * static_cast<double>(prompt_tokens);
}

TEST(StepPacer, LearnsTheChunkThatDoublesAStep) {
  StepPacer pacer({.largest = 512, .automatic = true});
  EXPECT_EQ(pacer.prompt_tokens(0), 512) << "nobody waits";
  EXPECT_EQ(pacer.prompt_tokens(8), 16) << "nothing is known yet";
  for (int i = 0; i < 50; ++i) {
    pacer.observe(8, 0, machine_s(8, 0));
    const int64_t chunk = pacer.prompt_tokens(8);
    pacer.observe(8, chunk, machine_s(8, chunk));
  }
  EXPECT_EQ(pacer.prompt_tokens(8), 9) << "18 ms more at 2 ms each";
  EXPECT_LE(machine_s(8, pacer.prompt_tokens(8)), 2 * machine_s(8, 0));
}

TEST(StepPacer, ATargetBoundsTheStep) {
  StepPacer pacer({.largest = 512, .target_s = 0.1});
  for (int i = 0; i < 50; ++i) {
    pacer.observe(8, 0, machine_s(8, 0));
    pacer.observe(8, 4, machine_s(8, 4));
  }
  EXPECT_EQ(pacer.prompt_tokens(8), 41);
  StepPacer tight({.largest = 512, .target_s = 0.005});
  tight.observe(8, 0, machine_s(8, 0));
  tight.observe(8, 4, machine_s(8, 4));
  EXPECT_EQ(tight.prompt_tokens(8), 1) << "a prompt never stops";
}

TEST(StepPacer, WithoutPacingTheStepIsFull) {
  StepPacer pacer({.largest = 64});
  pacer.observe(1, 0, 1.0);
  pacer.observe(1, 64, 100.0);
  EXPECT_EQ(pacer.prompt_tokens(1), 64);
}

}  // namespace
}  // namespace tare::runtime
