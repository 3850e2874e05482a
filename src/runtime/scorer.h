#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/attention_cache.h"
#include "model/transformer.h"

namespace tare::runtime {

/// Runs one list of tokens at a time from an empty context and hands out the logits of every position, a few rows at a
/// time, so that no [T, vocab] array is ever made. One sequence is the trivial block table.
class Scorer {
 public:
  /// context: longest list. Errors: as AttentionCache::make.
  static Result<Scorer> make(model::Transformer& transformer, model::AttentionCache::Options cache, int64_t context,
                             ThreadPool& pool);

  /// visit(first_position, rows, logits): logits [rows][vocab] of positions first_position ... in order.
  using Visitor = std::function<Status(int64_t first_position, int64_t rows, const float* logits)>;
  Status run(std::span<const int32_t> tokens, const Visitor& visit, const model::Observer* observer = nullptr);

  /// The next piece of the list that run() is walking, for two models side by side: rows of [first, first + count).
  Status piece(std::span<const int32_t> tokens, int64_t first, int64_t count, float* logits,
               const model::Observer* observer = nullptr);
  int64_t piece_tokens() const { return piece_tokens_; }
  int64_t vocab_size() const { return transformer_->architecture().vocab_size; }
  const model::AttentionCache& cache() const { return *cache_; }

 private:
  Scorer() = default;

  model::Transformer* transformer_ = nullptr;
  std::unique_ptr<model::AttentionCache> cache_;
  std::vector<int32_t> blocks_;
  std::vector<int32_t> rows_;
  std::vector<float> logits_;
  int64_t piece_tokens_ = 128;
};

}  // namespace tare::runtime
