#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/linear.h"
#include "kernels/peaks.h"

namespace tare::kernels {

struct MeasureOptions {
  int64_t cold_bytes = int64_t{512} << 20;  // packed weights cycled through: more than the last-level cache holds
  double seconds = 0.5;                     // per M, at least; never fewer than `repeats` passes
  int repeats = 20;
  BenchClock clock = BenchClock::kWall;
};

/// Times of one product y[M,N] = x[M,K] * w^T: the activations in the kernel's form, output written; preparation of the
/// form apart (it is shared between matrices).
struct LinearTiming {
  int64_t m = 0;
  double median_s = 0;
  double min_s = 0;
  double max_s = 0;
  int repeats = 0;
};

/// Codes, scales, zeros and minima of a weight as a file stores them, without padding: the bytes that shares of the
/// read bandwidth count.
int64_t stored_bytes(const tensor::Weight& weight);

/// Packs copies of `weight` until they exceed cold_bytes, then times each M over them in turn, after one warm-up pass.
/// Cold for the last-level cache, warm for TLB and branches, as in a decode step over many layers.
Result<std::vector<LinearTiming>> measure_linear(const LinearKernel& kernel, const LinearProblem& problem,
                                                 const tensor::Weight& weight, std::span<const int64_t> m,
                                                 machine::Isa isa, ThreadPool& pool, const MeasureOptions& options);

}  // namespace tare::kernels
