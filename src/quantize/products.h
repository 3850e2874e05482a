#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_bytes.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/linear.h"
#include "machine/isa.h"

namespace tare::quantize {

/// Dense f32 products with the model's own kernels. A result does not depend on the number of threads (promise P1),
/// only on the instruction set. One thread at a time calls; work inside runs on the pool.
class Products {
 public:
  Products(kernels::LinearRegistry registry, machine::Capabilities caps, ThreadPool& pool)
      : registry_(std::move(registry)), caps_(caps), pool_(&pool) {}

  /// out[m, n] = sum_k x[m, k] w[n, k]. x: rows x_stride apart; w: [N, K] packed; out: rows out_stride apart.
  Status multiply(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* w, int64_t n, float* out,
                  int64_t out_stride);

  ThreadPool& pool() const { return *pool_; }
  const machine::Capabilities& caps() const { return caps_; }
  const kernels::LinearRegistry& registry() const { return registry_; }

 private:
  kernels::LinearRegistry registry_;
  machine::Capabilities caps_;
  ThreadPool* pool_;
  kernels::SelfTests self_tests_;
  AlignedBytes workspace_;
  AlignedBytes activations_;
};

/// [rows, columns] with a row stride -> [columns, rows] packed.
void transpose(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out, ThreadPool& pool);

}  // namespace tare::quantize
