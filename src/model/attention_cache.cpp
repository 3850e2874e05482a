#include "model/attention_cache.h"

#include <algorithm>

namespace tare::model {

kvcache::PagedKvCacheOptions cache_options(const Architecture& arch, const AttentionCache::Options& options) {
  return {.layers = arch.layers,
          .kv_heads = arch.kv_heads,
          .head_dim = arch.head_dim,
          .block_size = options.block_size,
          .num_blocks = options.num_blocks,
          .format = options.format,
          .layer_formats = options.layer_formats,
          .scales = options.scales};
}

Result<std::vector<AttentionCache::BoundLayer>> AttentionCache::bind(const Architecture& arch, const Options& options) {
  const kernels::AttentionRegistry registry = kernels::builtin_attention_kernels();
  std::vector<BoundLayer> out;
  for (size_t layer = 0; layer < static_cast<size_t>(arch.layers); ++layer) {
    const kvcache::KvFormat& format = options.layer_formats.empty() ? options.format : options.layer_formats[layer];
    BoundLayer bound;
    bound.problem = {.heads = arch.heads,
                     .kv_heads = arch.kv_heads,
                     .head_dim = arch.head_dim,
                     .scale = arch.attention_scale,
                     .soft_cap = arch.attention_soft_cap,
                     .window = arch.plan[layer].window,
                     .k = format.k,
                     .v = format.v,
                     .block_size = options.block_size};
    TARE_ASSIGN(bound.selection,
                kernels::select_attention(registry, bound.problem, options.caps, options.forced_kernel));
    out.push_back(std::move(bound));
  }
  return out;
}

Result<int64_t> AttentionCache::workspace_bytes_for(const Architecture& arch, const Options& options, int threads) {
  TARE_ASSIGN(const std::vector<BoundLayer> layers, bind(arch, options));
  int64_t workspace = 0;
  for (const BoundLayer& bound : layers) {
    workspace = std::max(workspace, bound.selection.kernel->workspace_bytes(bound.problem, options.max_batch_tokens,
                                                                            options.context, threads));
  }
  return workspace;
}

Result<AttentionCache> AttentionCache::make(const Architecture& arch, const Options& options, int threads) {
  TARE_ASSIGN(kvcache::PagedKvCache pages, kvcache::PagedKvCache::make(cache_options(arch, options)));
  AttentionCache cache(std::move(pages));
  TARE_ASSIGN(cache.bound_, bind(arch, options));
  TARE_ASSIGN(const int64_t workspace, workspace_bytes_for(arch, options, threads));
  cache.workspace_ = AlignedBytes(static_cast<size_t>(workspace));
  return cache;
}

int64_t AttentionCache::token_bytes(int64_t layer) const {
  const kernels::AttentionProblem& p = bound_[static_cast<size_t>(layer)].problem;
  return p.kv_heads * (kernels::kv_bytes_per_token(p.k, p.head_dim) + kernels::kv_bytes_per_token(p.v, p.head_dim));
}

void AttentionCache::store(int64_t layer, std::span<const kernels::KvAppend> appends, ThreadPool& pool) {
  bound_[static_cast<size_t>(layer)].selection.kernel->store(pages_.layer(layer), appends, pool);
}

void AttentionCache::attend(int64_t layer, std::span<const kernels::AttentionSegment> segments, ThreadPool& pool) {
  const BoundLayer& bound = bound_[static_cast<size_t>(layer)];
  bound.selection.kernel->run(bound.problem, pages_.layer(layer), segments, workspace_.bytes(), pool);
}

}  // namespace tare::model
