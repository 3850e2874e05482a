#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tare {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 31, 1000}) {
      std::vector<int> hits(static_cast<size_t>(count), 0);
      pool.parallel_for(count, 3, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), count);
      for (const int hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, SurvivesManySmallJobs) {
  ThreadPool pool(3);
  std::atomic<int> total{0};
  for (int i = 0; i < 2000; ++i) pool.run([&](int) { total.fetch_add(1); });
  EXPECT_EQ(total.load(), 6000);
}

TEST(ThreadPool, SharedWorkIsDoneByWhoeverComes) {
  ThreadPool pool(3);
  for (int i = 0; i < 20000; ++i) {
    std::atomic<int> next{0}, total{0}, calls{0};
    pool.share([&](int) {
      calls.fetch_add(1);
      while (next.fetch_add(1) < 5) total.fetch_add(1);
    });
    ASSERT_EQ(total.load(), 5);
    ASSERT_GE(calls.load(), 1);
    ASSERT_LE(calls.load(), 3);
  }
}

TEST(ThreadPool, SharingWaitsForThoseThatCame) {
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> came{false}, ended{false};
    pool.share([&](int thread) {
      if (thread == 0) {
        while (!came.load()) std::this_thread::yield();
      } else {
        came.store(true);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ended.store(true);
      }
    });
    EXPECT_TRUE(ended.load());
  }
}

TEST(ThreadPool, KindsOfJobsMix) {
  ThreadPool pool(4);
  std::atomic<int> total{0};
  for (int i = 0; i < 2000; ++i) {
    std::atomic<int> shared{0};
    pool.share([&](int) { shared.fetch_add(1); });
    pool.run([&](int) { total.fetch_add(1); });
    ASSERT_EQ(total.load(), 4 * (i + 1));
    if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers fall asleep
  }
}

}  // namespace
}  // namespace tare
