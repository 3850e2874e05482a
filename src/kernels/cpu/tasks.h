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
  pool.share([&](int thread) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(task, thread);
  });
}

/// Calls body(task, thread) once for each task in [0, count): each thread has a share of neighbouring tasks and walks
/// it in order, so that what it reads is one stream of memory; whoever is done takes from the ends of the others'
/// shares.
template <class Body>
void for_each_neighbour(ThreadPool& pool, int64_t count, Body&& body) {
  constexpr int kMostShares = 64;
  if (count <= 1 || pool.size() == 1 || count >= (int64_t{1} << 32)) return for_each_task(pool, count, body);
  struct alignas(64) Share {
    std::atomic<uint64_t> rest;  // |end: 32 bits|begin: 32 bits|
  };
  Share shares[kMostShares];
  const int n = pool.size() < kMostShares ? pool.size() : kMostShares;
  for (int i = 0; i < n; ++i) {
    const auto begin = static_cast<uint64_t>(count * i / n);
    const auto end = static_cast<uint64_t>(count * (i + 1) / n);
    shares[i].rest.store(end << 32 | begin, std::memory_order_relaxed);
  }
  const auto take = [](Share& share, bool last, int64_t& task) {
    uint64_t rest = share.rest.load(std::memory_order_relaxed);
    while (true) {
      const uint64_t begin = rest & 0xffffffffu, end = rest >> 32;
      if (begin >= end) return false;
      task = static_cast<int64_t>(last ? end - 1 : begin);
      const uint64_t left = last ? (end - 1) << 32 | begin : end << 32 | (begin + 1);
      if (share.rest.compare_exchange_weak(rest, left, std::memory_order_relaxed)) return true;
    }
  };
  pool.share([&](int thread) {
    const int own = thread % n;
    for (int64_t task; take(shares[own], false, task);) body(task, thread);
    for (int i = 1; i < n; ++i) {
      for (int64_t task; take(shares[(own + i) % n], true, task);) body(task, thread);
    }
  });
}

}  // namespace tare::kernels
