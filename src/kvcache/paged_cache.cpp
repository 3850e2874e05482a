#include "kvcache/paged_cache.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"

namespace tare::kvcache {

namespace {

using kernels::KvSide;

Status check_scales(const std::vector<float>& scales, int64_t kv_heads, int64_t layer, std::string_view side) {
  const std::string where = fmt::format("layer {}, {} scale", layer, side);
  const auto count = static_cast<int64_t>(scales.size());
  if (count != 1 && count != kv_heads) {
    return invalid_input("an fp8 KV cache lacks its static scales",
                         {.where = where,
                          .expected = fmt::format("1 or {} numbers", kv_heads),
                          .found = fmt::format("{}", count),
                          .hint = "--calculate-kv-scales puts scales into the pages, --kv-scale=one uses 1.0"});
  }
  for (const float s : scales) {
    if (!(s > 0) || !std::isfinite(s)) {
      return invalid_input("a KV scale is not usable",
                           {.where = where, .expected = "finite and > 0", .found = fmt::format("{}", s)});
    }
  }
  return {};
}

Status check_positive(std::string_view what, int64_t value) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  if (value >= 1 && value <= kLargest) return {};
  return invalid_input(
      "a size of the KV cache is out of range",
      {.where = std::string(what), .expected = fmt::format("1 to {}", kLargest), .found = fmt::format("{}", value)});
}

Status check(const PagedKvCacheOptions& o) {
  TARE_TRY(check_positive("layers", o.layers));
  TARE_TRY(check_positive("kv heads", o.kv_heads));
  TARE_TRY(check_positive("head_dim", o.head_dim));
  TARE_TRY(check_positive("block size", o.block_size));
  if ((o.block_size & (o.block_size - 1)) != 0) {
    return invalid_input(
        "the KV block size is not usable",
        {.where = "--block-size", .expected = "a power of two", .found = fmt::format("{}", o.block_size)});
  }
  const auto layers = static_cast<size_t>(o.layers);
  if (!o.layer_formats.empty() && o.layer_formats.size() != layers) {
    return internal_error("KV formats do not match the layers", {.found = fmt::format("{}", o.layer_formats.size())});
  }
  for (int64_t i = 0; i < o.layers; ++i) {
    const KvFormat& format = o.layer_format(i);
    const KvLayerScales none;
    const KvLayerScales& scales = static_cast<size_t>(i) < o.scales.size() ? o.scales[static_cast<size_t>(i)] : none;
    if (kernels::is_fp8(format.k.type) && !format.k.scale_in_page) {
      TARE_TRY(check_scales(scales.k, o.kv_heads, i, "K"));
    }
    if (kernels::is_fp8(format.v.type) && !format.v.scale_in_page) {
      TARE_TRY(check_scales(scales.v, o.kv_heads, i, "V"));
    }
  }
  return {};
}

}  // namespace

Result<int64_t> kv_bytes_per_token(const PagedKvCacheOptions& o) {
  TARE_TRY(check(o));
  uint64_t total = 0;
  for (int64_t i = 0; i < o.layers; ++i) {
    const auto layer = checked_mul(static_cast<uint64_t>(o.layer_format(i).bytes_per_token(o.head_dim)),
                                   static_cast<uint64_t>(o.kv_heads));
    const auto sum = layer ? checked_add(total, *layer) : std::nullopt;
    if (!sum || *sum > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / o.block_size)) {
      return invalid_input("the sizes of the KV cache overflow");
    }
    total = *sum;
  }
  return static_cast<int64_t>(total);
}

void Unmap::operator()(std::byte* p) const {
  ::munmap(p, bytes);
}

Result<PagedKvCache> PagedKvCache::make(PagedKvCacheOptions options) {
  TARE_ASSIGN(const int64_t token_bytes, kv_bytes_per_token(options));
  TARE_TRY(check_positive("number of blocks", options.num_blocks));
  PagedKvCache out;
  out.block_bytes_ = token_bytes * options.block_size;
  const auto total = checked_mul(static_cast<uint64_t>(out.block_bytes_), static_cast<uint64_t>(options.num_blocks));
  // A tail, so that vector loads at the end of the last page stay inside.
  constexpr uint64_t kTail = 64;
  const auto mapped = total ? checked_add(*total, kTail) : std::nullopt;
  if (!mapped || *mapped > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return invalid_input("the sizes of the KV cache overflow");
  }
  int64_t offset = 0;
  for (int64_t i = 0; i < options.layers; ++i) {
    const KvFormat& format = options.layer_format(i);
    LayerPlace place;
    place.offset = offset;
    place.k = kernels::kv_page_layout(format.k, KvSide::kKey, options.head_dim, options.block_size);
    place.v = kernels::kv_page_layout(format.v, KvSide::kValue, options.head_dim, options.block_size);
    place.block_bytes = options.kv_heads * (place.k.bytes + place.v.bytes);
    offset += place.block_bytes * options.num_blocks;
    out.places_.push_back(place);
  }
  void* memory = ::mmap(nullptr, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return does_not_fit("the system refused the memory of the KV cache", {.found = fmt::format("{} bytes", *mapped)});
  }
  ::madvise(memory, *mapped, MADV_HUGEPAGE);  // a wish: small pages work too
  out.memory_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(memory), Unmap{*mapped});
  out.options_ = std::move(options);
  return out;
}

kernels::KvLayer PagedKvCache::layer(int64_t layer) const {
  const LayerPlace& place = places_[static_cast<size_t>(layer)];
  kernels::KvLayer out;
  out.base = memory_.get() + place.offset;
  out.block_bytes = place.block_bytes;
  out.kv_heads = options_.kv_heads;
  out.k = place.k;
  out.v = place.v;
  if (static_cast<size_t>(layer) < options_.scales.size()) {
    // A scale belongs to the fp8 cache it was made for; another cache ignores it.
    const KvLayerScales& scales = options_.scales[static_cast<size_t>(layer)];
    if (kernels::is_fp8(place.k.form.type)) out.k_scale = scales.k;
    if (kernels::is_fp8(place.v.form.type)) out.v_scale = scales.v;
  }
  return out;
}

void PagedKvCache::append(const kernels::AttentionKernel& kernel, int64_t layer_index,
                          std::span<const int32_t> block_table, int64_t position, int64_t count, const float* k,
                          const float* v, ThreadPool& pool) {
  const int64_t stride = options_.kv_heads * options_.head_dim;
  const kernels::KvAppend one{.k = k,
                              .k_stride = stride,
                              .v = v,
                              .v_stride = stride,
                              .count = count,
                              .position = position,
                              .blocks = block_table.data()};
  kernel.store(layer(layer_index), {&one, 1}, pool);
}

void PagedKvCache::copy_block(int32_t from, int32_t to) {
  for (const LayerPlace& place : places_) {
    std::byte* base = memory_.get() + place.offset;
    std::memcpy(base + to * place.block_bytes, base + from * place.block_bytes, static_cast<size_t>(place.block_bytes));
  }
}

}  // namespace tare::kvcache
