#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace tare {

/// A fixed set of worker threads; the caller is thread 0. Workers spin briefly between jobs, then sleep.
/// Only one thread may call `run`/`share`/`parallel_for` at a time; nested calls are an error (asserted).
/// Work is handed out dynamically, so a kernel's result must not depend on which thread computes what (promise P1).
class ThreadPool {
 public:
  /// threads >= 1. With pin, thread i is bound to the i-th CPU that this process may use.
  explicit ThreadPool(int threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  /// Calls body(thread_index) once on each thread and returns when all are done. body must not throw.
  template <class Body>
  void run(Body&& body) {
    run_erased([](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); },
               &body);
  }

  /// Calls body(thread_index) on the caller, and at most once on each worker that comes before the caller's own call
  /// has ended; returns when all that came are done. For work that bodies hand out among themselves: a worker that
  /// the system is not running then holds up nobody. body must not throw.
  template <class Body>
  void share(Body&& body) {
    share_erased([](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); },
                 &body);
  }

  /// Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    if (count <= 0) return;
    if (size() == 1 || count <= grain) {
      body(int64_t{0}, count);
      return;
    }
    std::atomic<int64_t> next{0};
    share([&](int) {
      for (int64_t begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < count;) {
        body(begin, begin + grain < count ? begin + grain : count);
      }
    });
  }

 private:
  void run_erased(void (*call)(void*, int), void* context);
  void share_erased(void (*call)(void*, int), void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Number of CPUs this process may run on (affinity mask and cgroup quota), at least 1.
int owned_cpu_count();

}  // namespace tare
