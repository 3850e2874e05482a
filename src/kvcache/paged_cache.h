#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/attention.h"
#include "kvcache/kv_format.h"

namespace tare::kvcache {

/// Static fp8 scales of one layer: one number, or one per kv head.
struct KvLayerScales {
  std::vector<float> k;
  std::vector<float> v;
};

struct PagedKvCacheOptions {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_size = 16;  // tokens of a block; a power of two
  int64_t num_blocks = 0;
  KvFormat format;
  /// Layers that keep another format (--kv-cache-dtype-skip-layers): [layers], or empty = all `format`.
  std::vector<KvFormat> layer_formats;
  /// [layers], needed when a format is fp8 with static scales.
  std::vector<KvLayerScales> scales;

  const KvFormat& layer_format(int64_t layer) const {
    return layer_formats.empty() ? format : layer_formats[static_cast<size_t>(layer)];
  }
};

/// Bytes that one token takes over all layers and kv heads, K and V, scales included; a block is block_size times this.
/// Errors: sizes that are not positive or overflow; a block size that is not a power of two; lists of another length
/// than the layers; static scales that are missing or not positive and finite.
Result<int64_t> kv_bytes_per_token(const PagedKvCacheOptions& options);

/// Gives mapped memory back.
struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* p) const;
};

/// The memory of the KV cache: for each layer `num_blocks` blocks. A block number means the same tokens in all layers.
/// Who owns which block is decided elsewhere (BlockManager). One thread at a time calls `copy_block`; pages are written
/// by the store of an attention kernel.
class PagedKvCache {
 public:
  /// Reserves num_blocks * block_bytes(); pages are touched when first written.
  /// Errors: as kv_bytes_per_token; memory refused by the system (does not fit).
  static Result<PagedKvCache> make(PagedKvCacheOptions options);

  const PagedKvCacheOptions& options() const { return options_; }
  int64_t block_bytes() const { return block_bytes_; }  // all layers
  int64_t total_bytes() const { return block_bytes_ * options_.num_blocks; }

  /// Pages of one layer, for the attention kernels.
  kernels::KvLayer layer(int64_t layer) const;

  /// Quantizes and stores `count` tokens of one sequence from `position` on. k, v: [count][kv_heads * head_dim] f32.
  /// block_table[p / block_size] holds position p. A convenience over `kernel.store`, which takes whole batches.
  void append(const kernels::AttentionKernel& kernel, int64_t layer, std::span<const int32_t> block_table,
              int64_t position, int64_t count, const float* k, const float* v, ThreadPool& pool);

  /// Copies a block in all layers (copy on write).
  void copy_block(int32_t from, int32_t to);

 private:
  struct LayerPlace {
    int64_t offset = 0;  // of the layer's block 0
    int64_t block_bytes = 0;
    kernels::KvPageLayout k;
    kernels::KvPageLayout v;
  };

  PagedKvCache() = default;

  PagedKvCacheOptions options_;
  std::vector<LayerPlace> places_;
  int64_t block_bytes_ = 0;
  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace tare::kvcache
