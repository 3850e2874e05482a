#include "kernels/measure_attention.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/aligned_bytes.h"
#include "base/checked.h"
#include "kernels/reference/samples.h"

namespace tare::kernels {

Result<AttentionTiming> measure_attention(const AttentionKernel& kernel, const AttentionProblem& problem,
                                          const AttentionShape& shape, ThreadPool& pool,
                                          const MeasureOptions& options) {
  KvLayer layer;
  layer.kv_heads = problem.kv_heads;
  layer.k = kv_page_layout(problem.k, KvSide::kKey, problem.head_dim, problem.block_size);
  layer.v = kv_page_layout(problem.v, KvSide::kValue, problem.head_dim, problem.block_size);
  layer.block_bytes = problem.kv_heads * (layer.k.bytes + layer.v.bytes);
  const int64_t blocks = ceil_div(shape.context, problem.block_size);
  const int64_t cache_bytes = shape.batch * blocks * layer.block_bytes;
  const int64_t caches = std::max<int64_t>(1, ceil_div(options.cold_bytes, cache_bytes));
  AlignedBytes memory(static_cast<size_t>(caches * cache_bytes));
  std::vector<int32_t> tables(static_cast<size_t>(shape.batch * blocks));
  std::iota(tables.begin(), tables.end(), 0);

  const int64_t kv_width = problem.kv_heads * problem.head_dim, q_width = problem.heads * problem.head_dim;
  constexpr int64_t kRun = 256;  // tokens whose values repeat: the time does not depend on them
  const std::vector<float> k = sample_tokens(kRun, kv_width, 1), v = sample_tokens(kRun, kv_width, 2);
  const std::vector<float> q = sample_tokens(shape.batch * shape.queries, q_width, 3);
  std::vector<float> out(q.size());
  std::vector<AttentionSegment> segments;
  for (int64_t s = 0; s < shape.batch; ++s) {
    segments.push_back({.q = q.data() + s * shape.queries * q_width,
                        .q_stride = q_width,
                        .count = shape.queries,
                        .position = shape.context - shape.queries,
                        .blocks = tables.data() + s * blocks,
                        .out = out.data() + s * shape.queries * q_width,
                        .out_stride = q_width});
  }
  const auto at = [&](int64_t cache) { return memory.data() + cache * cache_bytes; };
  for (int64_t cache = 0; cache < caches; ++cache) {
    layer.base = at(cache);
    for (int64_t s = 0; s < shape.batch; ++s) {
      for (int64_t p = 0; p < shape.context; p += kRun) {
        const KvAppend append{.k = k.data(),
                              .k_stride = kv_width,
                              .v = v.data(),
                              .v_stride = kv_width,
                              .count = std::min(kRun, shape.context - p),
                              .position = p,
                              .blocks = tables.data() + s * blocks};
        kernel.store(layer, {&append, 1}, pool);
      }
    }
  }
  AlignedBytes workspace(
      static_cast<size_t>(kernel.workspace_bytes(problem, shape.batch * shape.queries, shape.context, pool.size())));

  std::vector<double> seconds;
  const double start = bench_seconds(options.clock);
  double before = start;
  for (int64_t pass = -1;; ++pass) {
    layer.base = at((pass + 1) % caches);
    kernel.run(problem, layer, segments, workspace.bytes(), pool);
    const double now = bench_seconds(options.clock);
    if (pass >= 0) seconds.push_back(now - before);
    before = now;
    const double total = now - start;
    if (pass + 1 >= options.repeats && total >= options.seconds) break;
  }
  std::sort(seconds.begin(), seconds.end());
  const double first_keys = static_cast<double>(shape.context - shape.queries + 1);
  const double keys = (first_keys + static_cast<double>(shape.context)) / 2;  // seen by a query, on average
  return AttentionTiming{.median_s = seconds[seconds.size() / 2],
                         .min_s = seconds.front(),
                         .repeats = static_cast<int>(seconds.size()),
                         .bytes = static_cast<double>(shape.batch * shape.context * problem.kv_heads *
                                                      (kv_bytes_per_token(problem.k, problem.head_dim) +
                                                       kv_bytes_per_token(problem.v, problem.head_dim))),
                         .operations = 4.0 * static_cast<double>(shape.batch * shape.queries * q_width) * keys};
}

double attention_peak(const KvForm& form, const Peaks& peaks) {
  if (form.type == KvType::kInt4) return peaks.u4s8_tops * 1e12;
  if (form.type == KvType::kInt8) return peaks.s8s8_tops * 1e12 / 2;
  return peaks.f32_gflops * 1e9;
}

}  // namespace tare::kernels
