#include "kernels/cpu/tasks.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tare::kernels {
namespace {

TEST(Tasks, EachIsDoneOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> plain(static_cast<size_t>(count)), near(static_cast<size_t>(count));
      for_each_task(pool, count, [&](int64_t task, int) { plain[static_cast<size_t>(task)].fetch_add(1); });
      for_each_neighbour(pool, count, [&](int64_t task, int thread) {
        EXPECT_LT(thread, threads);
        near[static_cast<size_t>(task)].fetch_add(1);
      });
      for (const auto& hits : plain) EXPECT_EQ(hits.load(), 1);
      for (const auto& hits : near) EXPECT_EQ(hits.load(), 1);
    }
  }
}

TEST(Tasks, ShareOfASlowThreadIsTaken) {
  ThreadPool pool(2);
  for (int i = 0; i < 20; ++i) {
    // Whoever gets the first task of the second share keeps it until all others are done.
    std::atomic<int> done{0};
    for_each_neighbour(pool, 100, [&](int64_t task, int) {
      while (task == 50 && done.load() < 99) std::this_thread::yield();
      done.fetch_add(1);
    });
    EXPECT_EQ(done.load(), 100);
  }
}

}  // namespace
}  // namespace tare::kernels
