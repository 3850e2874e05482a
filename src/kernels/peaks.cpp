#include "kernels/peaks.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/aligned_bytes.h"

namespace tare::kernels {

double bench_seconds(BenchClock clock) {
  if (clock == BenchClock::kCpu) {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

double best_rate(double (*loop)(int64_t), ThreadPool& pool, BenchClock clock) {
  // Many short runs: some of them meet no interruption.
  constexpr int kRuns = 60;
  constexpr int64_t kRounds = 60000;  // about 1.5 ms
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> products(static_cast<size_t>(pool.size()), 0.0);
    const double start = bench_seconds(clock);
    pool.run([&](int thread) { products[static_cast<size_t>(thread)] = loop(kRounds); });
    const double seconds = bench_seconds(clock) - start;
    double total = 0;
    for (const double p : products) total += p;
    best = std::max(best, 2 * total / seconds);
  }
  return best;
}

const PeakLoops& loops_of(machine::Isa isa) {
  switch (isa) {
    case machine::Isa::kAvx512Vnni:
      return kPeaksAvx512Vnni;
    case machine::Isa::kAvx2:
      return kPeaksAvx2;
    case machine::Isa::kReference:
      break;
  }
  return kPeaksReference;
}

uint64_t read_words(const uint8_t* data, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    sum += word;
  }
  return sum;
}

}  // namespace

const PeakLoops kPeaksReference = {.u4s8 = nullptr, .s8s8 = nullptr, .f32 = nullptr, .read = read_words};

double measure_read_bytes_per_s(machine::Isa isa, ThreadPool& pool, int64_t buffer_bytes, int passes,
                                BenchClock clock) {
  const PeakLoops& loops = loops_of(isa);
  constexpr int64_t kGrain = 1 << 20;
  AlignedBytes buffer(static_cast<size_t>(buffer_bytes));
  const auto* data = reinterpret_cast<const uint8_t*>(buffer.data());
  // Each page is touched by a thread that will read it: on a machine with several memory nodes it then lies near.
  pool.parallel_for(buffer_bytes, kGrain, [&](int64_t begin, int64_t end) {
    std::memset(buffer.data() + begin, 1, static_cast<size_t>(end - begin));
  });
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double start = bench_seconds(clock);
    pool.parallel_for(buffer_bytes, kGrain, [&](int64_t begin, int64_t end) {
      sink.fetch_add(loops.read(data + begin, end - begin), std::memory_order_relaxed);
    });
    const double seconds = bench_seconds(clock) - start;
    best = std::max(best, static_cast<double>(buffer_bytes) / seconds);
  }
  return sink.load() == 1 ? 0 : best;  // keeps the sums alive
}

Peaks measure_peaks(machine::Isa isa, ThreadPool& pool, BenchClock clock) {
  if (isa == machine::Isa::kReference) return {};
  const PeakLoops& loops = loops_of(isa);
  return {.u4s8_tops = best_rate(loops.u4s8, pool, clock) * 1e-12,
          .s8s8_tops = best_rate(loops.s8s8, pool, clock) * 1e-12,
          .f32_gflops = best_rate(loops.f32, pool, clock) * 1e-9};
}

}  // namespace tare::kernels
