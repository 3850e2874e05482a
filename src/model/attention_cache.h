#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/aligned_bytes.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kvcache/paged_cache.h"
#include "machine/isa.h"
#include "model/architecture.h"

namespace tare::model {

/// The KV cache of a model together with the attention kernel that each layer reads it with.
class AttentionCache {
 public:
  struct Options {
    kvcache::KvFormat format;
    std::vector<kvcache::KvFormat> layer_formats;  // [layers] or empty
    std::vector<kvcache::KvLayerScales> scales;    // [layers], static fp8 scales
    int64_t block_size = 16;
    int64_t num_blocks = 0;
    int64_t max_batch_tokens = 512;
    int64_t context = 0;  // longest sequence
    machine::Capabilities caps;
    std::string forced_kernel;  // --attention-kernel
  };

  /// Errors: as PagedKvCache::make; no kernel for the format.
  static Result<AttentionCache> make(const Architecture& arch, const Options& options, int threads);

  /// Scratch of attention over all layers; num_blocks is not read. Errors: no kernel for the format.
  static Result<int64_t> workspace_bytes_for(const Architecture& arch, const Options& options, int threads);

  kvcache::PagedKvCache& pages() { return pages_; }
  const kvcache::PagedKvCache& pages() const { return pages_; }
  int64_t block_size() const { return pages_.options().block_size; }
  /// Name of the kernel of a layer and the reasons of the others.
  const kernels::AttentionSelection& selection(int64_t layer) const {
    return bound_[static_cast<size_t>(layer)].selection;
  }
  int64_t workspace_bytes() const { return static_cast<int64_t>(workspace_.size()); }
  /// Bytes of one token in one layer, all heads.
  int64_t token_bytes(int64_t layer) const;

  /// Stores the new keys and values, then attends, for all sequences of a step.
  void store(int64_t layer, std::span<const kernels::KvAppend> appends, ThreadPool& pool);
  void attend(int64_t layer, std::span<const kernels::AttentionSegment> segments, ThreadPool& pool);

 private:
  struct BoundLayer {
    kernels::AttentionProblem problem;
    kernels::AttentionSelection selection;
  };

  explicit AttentionCache(kvcache::PagedKvCache pages) : pages_(std::move(pages)) {}
  static Result<std::vector<BoundLayer>> bind(const Architecture& arch, const Options& options);

  kvcache::PagedKvCache pages_;
  std::vector<BoundLayer> bound_;
  AlignedBytes workspace_;
};

/// The sizes of a model's cache, for the planner and for AttentionCache.
kvcache::PagedKvCacheOptions cache_options(const Architecture& arch, const AttentionCache::Options& options);

}  // namespace tare::model
