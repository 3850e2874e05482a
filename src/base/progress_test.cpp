#include "base/progress.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tare {
namespace {

TEST(DurationText, IsReadable) {
  EXPECT_EQ(duration_text(7.4), "0:07");
  EXPECT_EQ(duration_text(754), "12:34");
  EXPECT_EQ(duration_text(10921), "3:02:01");
  EXPECT_EQ(duration_text(1e300), "?");
}

TEST(ProgressText, ShowsRateAndRemainingTime) {
  EXPECT_EQ(progress_text("quantize", 30, 120, "layers", 60, "", 0),
            "quantize  25%  30/120 layers, 0.5/s, 1:00 elapsed, 3:00 left");
  EXPECT_EQ(progress_text("quantize", 30, 120, "layers", 60, "q_proj", 200),
            "quantize [#####...............]  25%  30/120 layers, 0.5/s, 1:00 elapsed, 3:00 left  q_proj");
}

TEST(ProgressText, KnowsNeitherTotalNorRateAtTheStart) {
  EXPECT_EQ(progress_text("read", 0, 0, "B", 0, "", 0), "read  0 B, 0:00");
  EXPECT_EQ(progress_text("read", 2 << 20, 0, "B", 2, "", 0), "read  2.00 MiB, 1.00 MiB/s, 0:02");
  EXPECT_EQ(progress_text("x", 3, 3, "files", 1, "", 0), "x 100%  3/3 files, 3/s, 0:01");
}

TEST(ProgressText, FitsTheTerminal) {
  EXPECT_LE(progress_text("quantize", 30, 120, "layers", 60, std::string(300, 'x'), 40).size(), 40u);
}

TEST(Progress, CountsFromManyThreads) {
  Progress progress(ProgressMode::kLines, "work", 4000, "steps");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) progress.advance();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(progress.done(), 4000);
}

}  // namespace
}  // namespace tare
