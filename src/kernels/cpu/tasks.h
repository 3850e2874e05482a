#pragma once

#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"

namespace tare::kernels {

/// Calls body(task, thread) once for each task in [0, count), on whichever thread is free.
template <class Body>
void for_each_task(ThreadPool& pool, int64_t count, Body&& body) {
  if (count <= 1 || pool.size() == 1) {
    for (int64_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  pool.run([&](int thread) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(task, thread);
  });
}

}  // namespace tare::kernels
