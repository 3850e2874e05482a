#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tare {

namespace {

// About 50 us on a 3 GHz core: longer than the gap between two layers, shorter than a user notices as load.
constexpr int kSpinRounds = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> pending{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};
  void (*call)(void*, int) = nullptr;
  void* context = nullptr;

  void work(int index) {
    uint64_t seen = 0;
    while (true) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen && !stop.load(std::memory_order_relaxed)) {
        if (++spins < kSpinRounds) {
          relax();
        } else {
          std::unique_lock lock(mutex);
          wake.wait(lock, [&] { return generation.load() != seen || stop.load(); });
        }
      }
      if (stop.load()) return;
      seen = generation.load(std::memory_order_acquire);
      call(context, index);
      pending.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : impl_(std::make_unique<Impl>()) {
  assert(threads >= 1);
  const std::vector<int> cpus = allowed_cpus();
  const auto bind = [&](pthread_t handle, int index) {
    if (!pin || static_cast<size_t>(threads) > cpus.size()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[static_cast<size_t>(index)], &set);
    pthread_setaffinity_np(handle, sizeof set, &set);  // best effort: a pool works unpinned too
  };
  bind(pthread_self(), 0);
  for (int i = 1; i < threads; ++i) {
    impl_->workers.emplace_back([this, i] { impl_->work(i); });
    bind(impl_->workers.back().native_handle(), i);
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop.store(true);
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::size() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::run_erased(void (*call)(void*, int), void* context) {
  [[maybe_unused]] const bool was_busy = impl_->busy.exchange(true);
  assert(!was_busy && "ThreadPool::run is not reentrant");
  impl_->call = call;
  impl_->context = context;
  impl_->pending.store(static_cast<int>(impl_->workers.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->generation.fetch_add(1, std::memory_order_release);
  }
  impl_->wake.notify_all();
  call(context, 0);
  for (int spins = 0; impl_->pending.load(std::memory_order_acquire) != 0; ++spins) {
    // More threads than cores: let the others run instead of burning their time.
    if (spins < kSpinRounds)
      relax();
    else
      std::this_thread::yield();
  }
  impl_->busy.store(false);
}

int owned_cpu_count() {
  int count = static_cast<int>(allowed_cpus().size());
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    count = std::min(count, std::max(1, static_cast<int>(std::lround(std::stod(quota) / period))));
  }
  return std::max(1, count);
}

}  // namespace tare
