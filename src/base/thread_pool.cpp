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

// The state of a job in one word: |generation|closed: 1 bit|workers that came: 16 bits|. A worker comes by adding
// itself while the job is open; closing it tells the caller how many it has to wait for.
constexpr uint64_t kOneJob = uint64_t{1} << 17;
constexpr uint64_t kClosed = uint64_t{1} << 16;
constexpr uint64_t kCame = kClosed - 1;

struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> job{kClosed};
  std::atomic<int> done{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};
  void (*call)(void*, int) = nullptr;
  void* context = nullptr;

  static bool is_new(uint64_t now, uint64_t seen) { return now / kOneJob != seen && (now & kClosed) == 0; }

  void work(int index) {
    uint64_t seen = 0;
    while (true) {
      uint64_t now = job.load(std::memory_order_acquire);
      for (int spins = 0; !is_new(now, seen); now = job.load(std::memory_order_acquire)) {
        if (stop.load(std::memory_order_relaxed)) return;
        if (++spins < kSpinRounds) {
          relax();
          continue;
        }
        std::unique_lock lock(mutex);
        // Either the caller sees a sleeper, or the sleeper sees the job.
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return is_new(job.load(), seen) || stop.load(); });
        sleepers.fetch_sub(1);
        spins = 0;
      }
      if (!job.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
      seen = now / kOneJob;
      call(context, index);
      done.fetch_add(1, std::memory_order_release);
    }
  }

  void open(void (*new_call)(void*, int), void* new_context) {
    [[maybe_unused]] const bool was_busy = busy.exchange(true);
    assert(!was_busy && "ThreadPool::run is not reentrant");
    call = new_call;
    context = new_context;
    done.store(0, std::memory_order_relaxed);
    job.store((job.load(std::memory_order_relaxed) / kOneJob + 1) * kOneJob);
    if (sleepers.load() == 0) return;
    std::lock_guard lock(mutex);  // whoever is about to sleep does before it can miss this
    wake.notify_all();
  }

  void close(int expected) {
    for (int spins = 0; done.load(std::memory_order_acquire) != expected; ++spins) {
      // More threads than cores: let the others run instead of burning their time.
      if (spins < kSpinRounds)
        relax();
      else
        std::this_thread::yield();
    }
    busy.store(false);
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
  impl_->open(call, context);
  call(context, 0);
  impl_->close(size() - 1);
  impl_->job.fetch_or(kClosed);
}

void ThreadPool::share_erased(void (*call)(void*, int), void* context) {
  impl_->open(call, context);
  call(context, 0);
  impl_->close(static_cast<int>(impl_->job.fetch_or(kClosed) & kCame));
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
