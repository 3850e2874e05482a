#include "runtime/scorer.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tare::runtime {

Result<Scorer> Scorer::make(model::Transformer& transformer, model::AttentionCache::Options cache, int64_t context,
                            ThreadPool& pool) {
  Scorer scorer;
  scorer.transformer_ = &transformer;
  scorer.piece_tokens_ = std::min(scorer.piece_tokens_, transformer.max_batch_tokens());
  cache.num_blocks = ceil_div(context, cache.block_size);
  cache.max_batch_tokens = scorer.piece_tokens_;
  cache.context = context;
  TARE_ASSIGN(model::AttentionCache made, model::AttentionCache::make(transformer.architecture(), cache, pool.size()));
  scorer.cache_ = std::make_unique<model::AttentionCache>(std::move(made));
  scorer.blocks_.resize(static_cast<size_t>(cache.num_blocks));
  std::iota(scorer.blocks_.begin(), scorer.blocks_.end(), 0);
  scorer.rows_.resize(static_cast<size_t>(scorer.piece_tokens_));
  std::iota(scorer.rows_.begin(), scorer.rows_.end(), 0);
  return scorer;
}

Status Scorer::piece(std::span<const int32_t> tokens, int64_t first, int64_t count, float* logits,
                     const model::Observer* observer) {
  const model::SequenceSlice slice{.block_table = blocks_, .first_position = first, .count = count};
  const model::Batch batch{.tokens = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                           .sequences = {&slice, 1},
                           .logit_rows = {rows_.data(), logits ? static_cast<size_t>(count) : 0}};
  return transformer_->forward(batch, *cache_, logits, observer);
}

Status Scorer::run(std::span<const int32_t> tokens, const Visitor& visit, const model::Observer* observer) {
  logits_.resize(static_cast<size_t>(piece_tokens_ * vocab_size()));
  const auto total = static_cast<int64_t>(tokens.size());
  for (int64_t first = 0; first < total; first += piece_tokens_) {
    const int64_t count = std::min(piece_tokens_, total - first);
    TARE_TRY(piece(tokens, first, count, logits_.data(), observer));
    TARE_TRY(visit(first, count, logits_.data()));
  }
  return {};
}

}  // namespace tare::runtime
