#include "eval/speed.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/interrupt.h"

namespace tare::eval {

namespace {

// Sequences that own disjoint runs of blocks.
class Sequences {
 public:
  Sequences(model::Transformer& transformer, model::AttentionCache& cache, int64_t batch, int64_t length)
      : transformer_(transformer), cache_(cache), batch_(batch) {
    const int64_t blocks = ceil_div(length, cache.block_size());
    tables_.resize(static_cast<size_t>(batch * blocks));
    std::iota(tables_.begin(), tables_.end(), 0);
    for (int64_t s = 0; s < batch; ++s) {
      slices_.push_back(
          {.block_table = std::span(tables_).subspan(static_cast<size_t>(s * blocks), static_cast<size_t>(blocks))});
    }
    logits_.resize(static_cast<size_t>(batch * transformer.architecture().vocab_size));
  }

  // Computes positions [first, first + count) of one sequence in chunks; logits of the last token only.
  Status prefill(int64_t sequence, int64_t first, int64_t count, bool want_logits) {
    const int64_t chunk = transformer_.max_batch_tokens();
    for (int64_t done = 0; done < count;) {
      const int64_t now = std::min(chunk, count - done);
      TARE_TRY(check_interrupt("bench"));
      fill_tokens(now);
      model::SequenceSlice slice = slices_[static_cast<size_t>(sequence)];
      slice.first_position = first + done;
      slice.count = now;
      done += now;
      const auto last = static_cast<int32_t>(now - 1);
      const std::span<const int32_t> rows(&last, want_logits && done == count ? 1 : 0);
      TARE_TRY(transformer_.forward({.tokens = tokens_, .sequences = {&slice, 1}, .logit_rows = rows}, cache_,
                                    logits_.data()));
    }
    return {};
  }

  Status decode(int64_t position) {
    fill_tokens(batch_);
    rows_.resize(static_cast<size_t>(batch_));
    std::iota(rows_.begin(), rows_.end(), 0);
    for (model::SequenceSlice& slice : slices_) {
      slice.first_position = position;
      slice.count = 1;
    }
    return transformer_.forward({.tokens = tokens_, .sequences = slices_, .logit_rows = rows_}, cache_, logits_.data());
  }

 private:
  void fill_tokens(int64_t count) {
    tokens_.resize(static_cast<size_t>(count));
    for (int32_t& token : tokens_) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      token = static_cast<int32_t>((state_ >> 33) % static_cast<uint64_t>(transformer_.architecture().vocab_size));
    }
  }

  model::Transformer& transformer_;
  model::AttentionCache& cache_;
  int64_t batch_;
  uint64_t state_ = 1;
  std::vector<int32_t> tables_, tokens_, rows_;
  std::vector<model::SequenceSlice> slices_;
  std::vector<float> logits_;
};

}  // namespace

Result<Speed> measure_speed(model::Transformer& transformer, model::AttentionCache::Options options,
                            const SpeedRequest& request, ThreadPool& pool) {
  const int64_t length = request.depth + request.tokens;
  options.num_blocks = request.batch * ceil_div(length, options.block_size);
  options.max_batch_tokens = transformer.max_batch_tokens();
  options.context = length;
  TARE_ASSIGN(model::AttentionCache cache,
              model::AttentionCache::make(transformer.architecture(), options, pool.size()));
  Sequences sequences(transformer, cache, request.batch, length);
  if (request.depth > 0) {
    for (int64_t s = 0; s < request.batch; ++s) TARE_TRY(sequences.prefill(s, 0, request.depth, false));
  }
  Speed out;
  for (int repeat = -1; repeat < request.repeats; ++repeat) {
    if (repeat == 0) transformer.set_profile(request.profile);
    const double start = kernels::bench_seconds(request.clock);
    if (request.decode) {
      for (int64_t t = 0; t < request.tokens; ++t) {
        TARE_TRY(check_interrupt("bench"));
        TARE_TRY(sequences.decode(request.depth + t));
      }
    } else {
      for (int64_t s = 0; s < request.batch; ++s) TARE_TRY(sequences.prefill(s, request.depth, request.tokens, true));
    }
    if (repeat >= 0) out.seconds.push_back(kernels::bench_seconds(request.clock) - start);
  }
  transformer.set_profile(nullptr);
  std::sort(out.seconds.begin(), out.seconds.end());
  return out;
}

TrafficOf traffic(const model::Transformer& transformer) {
  TrafficOf out;
  for (const model::LinearRecord& record : transformer.records()) {
    const bool head = record.name == "lm_head";
    (head ? out.head_weights : out.body_weights) += record.n * record.k;
    (head ? out.head_bytes : out.body_bytes) += record.stored_bytes;
  }
  return out;
}

}  // namespace tare::eval
