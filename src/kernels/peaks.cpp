#include "kernels/peaks.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace tare::kernels {

namespace {

double best_rate(double (*loop)(int64_t), ThreadPool& pool) {
  constexpr int kRuns = 7;
  constexpr int64_t kRounds = 400000;  // about 10 ms
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> products(static_cast<size_t>(pool.size()), 0.0);
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread) { products[static_cast<size_t>(thread)] = loop(kRounds); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double total = 0;
    for (const double p : products) total += p;
    best = std::max(best, 2 * total / seconds);
  }
  return best;
}

}  // namespace

Peaks measure_peaks(machine::Isa isa, ThreadPool& pool) {
  if (isa == machine::Isa::kReference) return {};
  const PeakLoops& loops = isa == machine::Isa::kAvx512Vnni ? kPeaksAvx512Vnni : kPeaksAvx2;
  return {.u4s8_tops = best_rate(loops.u4s8, pool) * 1e-12,
          .s8s8_tops = best_rate(loops.s8s8, pool) * 1e-12,
          .f32_gflops = best_rate(loops.f32, pool) * 1e-9};
}

}  // namespace tare::kernels
